"""Adaptive computation time: halting probabilities, and states weighted by them.

Shapes: B batch, L positions, d width. A state is [h | s | p]: the hidden state, the weighted sum of those before, and
the probability spent, which makes 2d + 1 channels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scse.config.model import Shape
from scse.errors import UserError
from scse.recurrence.base import Coordinates, Frame, anchor_of
from scse.recurrence.drives import sinusoid
from scse.recurrence.slots import Drive, Halting


def parts(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """h, s and p of a state"""
    width = z.shape[-1] // 2
    return z[..., :width], z[..., width : 2 * width], z[..., 2 * width :]


class Weighted(Coordinates):
    """z = [h | s | p], read as s + (1 − p)·h: what has not been spent goes to the newest state. There is no anchor."""

    def enter(self, h: Tensor, hidden_anchor: Tensor | None) -> Tensor:
        return torch.cat([h, torch.zeros_like(h), torch.zeros_like(h[..., :1])], dim=-1)

    def native_anchor(self, hidden_anchor: Tensor | None) -> Tensor | None:
        return None

    def deviation(self, z: Tensor, frame: Frame) -> Tensor:
        return self.hidden(z, frame) - anchor_of(frame.anchor)

    def hidden(self, z: Tensor, frame: Frame) -> Tensor:
        h, total, spent = parts(z)
        return total + (1 - spent) * h


class TimedState(Drive):
    """x = h + τ·γ_t with γ_t the sinusoidal embedding of the step"""

    step_dependent = True

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.strength = strength

    def forward(self, t: int, z: Tensor, prepared: Tensor | None) -> Tensor:
        h, _, _ = parts(z)
        return h + self.strength * sinusoid(t, h.shape[-1], h)


class AdaptiveHalting(Halting):
    """p' = p + σ(w·h' + b) while that is at most 1 − ε, else the position halts: it spends the rest 1 − p, p' = 1.

    s' = s + (p' − p)·h'. A position that has halted keeps its state.
    """

    def __init__(self, shape: Shape, bias: float, epsilon: float) -> None:
        super().__init__()
        if not 0 < epsilon < 1:
            raise UserError(f"halting_epsilon must be between 0 and 1, got {epsilon}")
        self.proj = nn.Linear(shape.width, 1, bias=True)
        self.bias = bias
        self.epsilon = epsilon

    def forward(self, z: Tensor, new: Tensor) -> Tensor:
        h, total, spent = parts(z)
        moving = spent < 1
        wanted = spent + torch.sigmoid(self.proj(new).to(spent.dtype))
        after = torch.where(wanted > 1 - self.epsilon, torch.ones_like(wanted), wanted)
        kept = torch.where(moving, new, h)
        after = torch.where(moving, after, spent)
        return torch.cat([kept, total + (after - spent) * kept, after], dim=-1)

    def spent(self, z: Tensor) -> Tensor:
        _, _, spent = parts(z)
        return spent[..., 0]

    @torch.no_grad()
    def start_values(self) -> None:
        self.proj.bias.fill_(self.bias)
