"""Where weights lie in memory."""

from __future__ import annotations

import torch
from torch import nn

ALIGNMENT = 64  # bytes, as torch's own allocator has it


@torch.no_grad()
def align_weights(module: nn.Module) -> None:
    """Move weights that begin at an odd address, as in a mapped file, to one that torch would have chosen.

    Products with a single row add in an order that depends on the address, so the same weights would give other bits.
    """
    for parameter in module.parameters():
        if parameter.device.type == "cpu" and parameter.data_ptr() % ALIGNMENT:
            parameter.data = parameter.data.clone()
