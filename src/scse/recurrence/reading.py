"""What is read of a state after the loops, and gates that say when to stop. Shapes: B batch, L positions, d width."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from scse.config.model import Shape
from scse.nn import RMSNorm
from scse.recurrence.base import Unit


class Read(Unit):
    """y = h: what the coda, or the norm before the head, takes."""

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
        self.proj = nn.Linear(shape.width, shape.width, bias=False)

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

    def forward(self, h: Tensor) -> Tensor:
        return torch.sigmoid(self.proj(h)[..., 0])

    def distribution(self, states: Iterable[Tensor]) -> Tensor:
        """p_t = λ_t ∏_{j<t}(1 − λ_j) for the states h_1 … h_T; the last loop takes what is left [T, B, L]."""
        gates = torch.stack([self(h) for h in states])
        left = torch.cat([torch.ones_like(gates[:1]), (1 - gates[:-1]).cumprod(0)])
        return torch.cat([gates[:-1] * left[:-1], left[-1:]])
