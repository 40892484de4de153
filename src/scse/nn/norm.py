"""Root-mean-square normalisation. Both forms map zero to exactly zero."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def rms_normalise(x: Tensor, eps: float) -> Tensor:
    """n(x) = x / sqrt(mean(x²) + eps), without parameters."""
    return F.rms_norm(x, x.shape[-1:], eps=eps)


class RMSNorm(nn.Module):
    """RMSNorm(x) = w ⊙ n(x), with learned w from 1."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == self.weight.dtype:
            return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        # What a product in bfloat16 gives is normalised in the type of the weights and rounded again.
        return F.rms_norm(x.to(self.weight.dtype), x.shape[-1:], self.weight, self.eps).to(x.dtype)
