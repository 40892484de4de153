"""Dropout whose random bits are cheap on a CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEVELS = 1 << 16


class Dropout(nn.Module):
    """y = x ⊙ keep / (1 − p) while training, keep ~ Bernoulli(1 − p); y = x in evaluation.

    On a CPU torch draws one random number per element in a single thread, which costs as much as a small matrix
    product. Here four elements share one 64-bit draw, so p is rounded to a multiple of 2⁻¹⁶.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        dropped = round(self.p * _LEVELS)
        keep = random_words(x.shape) >= dropped - _LEVELS // 2
        return x * keep.to(x.dtype).mul_(_LEVELS / (_LEVELS - dropped))

    def extra_repr(self) -> str:
        return f"p={self.p}"


def random_words(shape: torch.Size) -> Tensor:
    """Uniform 16-bit words, −32768 … 32767, from torch's global generator."""
    count = shape.numel()
    draws = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    return draws.view(torch.int16)[:count].view(shape)
