"""What is read of a state after the loops, and gates that say when to stop. Shapes: B batch, L positions, d width."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scse.config.model import Shape
from scse.nn import RMSNorm
from scse.nn.products import Linear
from scse.recurrence.base import Unit
from scse.recurrence.slots import Read


class ReadState(Read):
    """y = h"""

    def forward(self, h: Tensor) -> Tensor:
        return h


class ReadNorm(Read):
    """y = w ⊙ n(h) with a learned w"""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = RMSNorm(shape.width, shape.norm_eps)

    def forward(self, h: Tensor) -> Tensor:
        normed: Tensor = self.norm(h)
        return normed


class ReadMatrix(Read):
    """y = C h with a matrix C that starts as the identity"""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.proj = Linear(shape.width, shape.width, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        read: Tensor = self.proj(h)
        return read

    @torch.no_grad()
    def start_values(self) -> None:
        nn.init.eye_(self.proj.weight)


class ExitGate(Unit):
    """λ_t = σ(w·h_t + b), the probability of stopping after loop t where it was not done before."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.proj = nn.Linear(shape.width, 1, bias=True)

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        """λ_t [B, L] of the states h_{t−1} and h_t"""
        width = self.proj.in_features  # behind the state may be what a coda needs
        return torch.sigmoid(self.logit(before[..., :width], after[..., :width]).to(after.dtype))

    def logit(self, before: Tensor, after: Tensor) -> Tensor:
        """The argument of σ [B, L]"""
        found: Tensor = self.proj(after)[..., 0]
        return found

    def distribution(self, states: Sequence[Tensor]) -> Tensor:
        """p_t = λ_t ∏_{j<t}(1 − λ_j) for the states h_0, h_1 … h_T; the last loop takes what is left [T, B, L]."""
        gates = torch.stack([self(before, after) for before, after in pairwise(states)])
        left = torch.cat([torch.ones_like(gates[:1]), (1 - gates[:-1]).cumprod(0)])
        return torch.cat([gates[:-1] * left[:-1], left[-1:]])


class MotionGate(ExitGate):
    """λ_t = σ(w·n(h_t) + a·log(‖h_t − h_{t−1}‖/‖h_t‖) + b): it also sees how far the state still moved."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.motion = nn.Parameter(torch.zeros(1))
        self.eps = shape.norm_eps

    def logit(self, before: Tensor, after: Tensor) -> Tensor:
        size = torch.linalg.vector_norm(after, dim=-1).clamp_min(self.eps)
        moved = torch.linalg.vector_norm(after - before, dim=-1) / size
        found: Tensor = self.proj(F.rms_norm(after, after.shape[-1:], eps=self.eps))[..., 0]
        slope: Tensor = self.motion * moved.clamp_min(self.eps).log()
        return found + slope
