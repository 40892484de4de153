"""How much of an update is taken (gain, mask), what it is added to (keep), and what follows (reset, halting)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scse.config.model import Shape
from scse.errors import UserError
from scse.nn import RMSNorm, rms_normalise
from scse.nn.products import Linear
from scse.recurrence.base import Coordinates, Frame, LoopMemory
from scse.recurrence.slots import Gain, Halting, Keep, Mask, Reset


class FixedScale(Gain):
    """q = s·u"""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        return self.scale * u


class ScalarGate(Gain):
    """q = g·u with one learned scalar g"""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.full((1,), float(start)))  # one number, but FSDP2 refuses scalars

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        return self.gate * u


class ChannelGate(Gain):
    """q = σ(W_g n(z) + b_g) ⊙ u"""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.eps = shape.norm_eps
        self.proj = Linear(shape.width, shape.width, bias=True)

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        return torch.sigmoid(self.proj(rms_normalise(z, self.eps))) * u


class NoMask(Mask):
    """q̄ = q"""

    def forward(
        self, coordinates: Coordinates, z: Tensor, frame: Frame, q: Tensor, memory: LoopMemory | None = None
    ) -> Tensor:
        return q


class ZeroDeviationMask(Mask):
    """q̄ = 1{‖Δ‖_F² > ε}·q, per example, over the whole sequence; with a memory, over all positions so far."""

    zeroes_at_anchor = True

    def __init__(self, threshold: float) -> None:
        super().__init__()
        if threshold < 0:
            raise UserError(f"mask_threshold must not be negative, got {threshold}; mask=false switches it off")
        self.threshold = threshold

    def forward(
        self, coordinates: Coordinates, z: Tensor, frame: Frame, q: Tensor, memory: LoopMemory | None = None
    ) -> Tensor:
        squares = coordinates.deviation(z, frame).pow(2)
        energy = squares.sum(dim=(1, 2)) if memory is None else memory.energy(squares.sum(dim=2))
        return torch.where((energy > self.threshold)[:, None, None], q, 0.0)

    def remember(self, coordinates: Coordinates, z: Tensor, frame: Frame, memory: LoopMemory) -> None:
        memory.energy(coordinates.deviation(z, frame).pow(2).sum(dim=2))


def make_mask(on: bool, threshold: float) -> Mask:
    return ZeroDeviationMask(threshold) if on else NoMask()


class KeepState(Keep):
    """The update is added to z, the state as it is."""

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return z


class Leak(Keep):
    """(1 − λ)·z"""

    def __init__(self, leak: float) -> None:
        super().__init__()
        if not 0 <= leak <= 1:
            raise UserError(f"leak must be between 0 and 1, got {leak}")
        self.leak = leak

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return (1.0 - self.leak) * z


class Decay(Keep):
    """λ ⊙ z with λ = exp(−softplus(d)), d learned from 0: λ begins at a half and stays between 0 and 1."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.zeros(shape.width))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.exp(-F.softplus(self.rate)) * z


class CarryInput(Keep):
    """The update is added to x, what the core saw: with u = B(x) the sum is M_L(x), the layers with their residuals."""

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return x


class NoReset(Reset):
    """The new state as it is."""

    def forward(self, t: int, z: Tensor) -> Tensor:
        return z


class PeriodicReset(Reset):
    """z ← n(z) after every p-th step"""

    step_dependent = True

    def __init__(self, shape: Shape, period: int) -> None:
        super().__init__()
        if period < 1:
            raise UserError(f"reset_period must be at least 1, got {period}")
        self.eps = shape.norm_eps
        self.period = period

    def forward(self, t: int, z: Tensor) -> Tensor:
        return rms_normalise(z, self.eps) if (t + 1) % self.period == 0 else z


class StepNorm(Reset):
    """z ← w ⊙ n(z) after every step, with a learned w: the state has left its layers through a norm."""

    normalises = True

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = RMSNorm(shape.width, shape.norm_eps)

    def forward(self, t: int, z: Tensor) -> Tensor:
        normed: Tensor = self.norm(z)
        return normed


class StateNorm(Reset):
    """z ← n(z) after every step; zero stays zero."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.eps = shape.norm_eps

    def forward(self, t: int, z: Tensor) -> Tensor:
        return rms_normalise(z, self.eps)


class NoHalting(Halting):
    """Every position moves to its new state."""

    def forward(self, z: Tensor, new: Tensor) -> Tensor:
        return new
