"""A core that is told the time and the size of its step.

Shapes: d width, L layers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scse.config.model import Shape
from scse.errors import UserError
from scse.nn.block import Modulation
from scse.recurrence.drives import sinusoid
from scse.recurrence.updates import SharedCore


class Affine(nn.Linear):
    """W x + b of one vector, in an order of additions that does not depend on where anything lies in memory: what a
    product with one row rounds to may."""

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x).sum(-1) + self.bias


class Clock(nn.Module):
    """c(τ) = W_2 silu(W_1 γ(τ) + b_1) + b_2 with γ the sinusoidal embedding of a number [d]"""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.inner = Affine(shape.width, shape.width)
        self.outer = Affine(shape.width, shape.width)

    def forward(self, number: float) -> Tensor:
        seen = sinusoid(number, self.inner.in_features, self.inner.weight)
        vector: Tensor = self.outer(F.silu(self.inner(seen)))
        return vector


class TimedCore(SharedCore):
    """a = g_a ⊙ Attn((1 + s_a) ⊙ RMSNorm(x)), B(x) = a + g_m ⊙ SwiGLU((1 + s_m) ⊙ RMSNorm(x + a)), in every layer with
    its own (s_a, g_a, s_m, g_m) = W silu(c(τ_t) + c'(δ)) + b.

    The step size is δ = 1/N and the time τ_t = tδ; steps after the N-th, where the sizes add up to 1, keep the last
    time. W and b start from 0, so that every layer starts as the identity.
    """

    step_dependent = True

    def __init__(self, shape: Shape, steps: int) -> None:
        super().__init__(shape)
        if steps < 1:
            raise UserError(f"time_steps must be at least 1, got {steps}")
        self.steps = steps
        self.time, self.size = Clock(shape), Clock(shape)
        self.modulate = nn.ModuleList(Affine(shape.width, 4 * shape.width) for _ in range(shape.core))

    @torch.no_grad()
    def start_values(self) -> None:
        for linear in self.modulate:
            for parameter in linear.parameters():
                parameter.zero_()

    def modulations(self, t: int) -> list[Modulation]:
        condition = F.silu(self.time(min(t, self.steps - 1) / self.steps) + self.size(1 / self.steps))
        return [Modulation(*linear(condition).chunk(4)) for linear in self.modulate]
