"""What the block sees: the state, and whatever the family adds to it.

A drive prepares what depends on the input alone once (`prepare`), and forms the block's input x at each step.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from scse.config.model import Shape
from scse.devices import wide
from scse.errors import UserError
from scse.nn.products import Linear
from scse.recurrence.base import anchor_of
from scse.recurrence.slots import Drive

EQUAL_ROWS = 8
Source = Callable[[Tensor, Tensor | None], Tensor]


def embedding_source(e: Tensor, hidden_anchor: Tensor | None) -> Tensor:
    return e


def anchor_source(e: Tensor, hidden_anchor: Tensor | None) -> Tensor:
    return anchor_of(hidden_anchor)


class BareState(Drive):
    """x = z: the block sees the state alone, so a zero state gives a zero input."""

    keeps_zero = True

    def forward(self, t: int, z: Tensor, prepared: Tensor | None) -> Tensor:
        return z


class Injection(Drive):
    """x = z + γ·W src with a learned scalar γ and src = e or h* (the α W_in and κ W_c of the paper)."""

    def __init__(self, shape: Shape, source: Source, gain: float) -> None:
        super().__init__()
        self.source = source
        self.proj = Linear(shape.width, shape.width, bias=False)
        self.gain = nn.Parameter(torch.full((1,), float(gain)))  # one number, but FSDP2 refuses scalars

    def prepare(self, e: Tensor, hidden_anchor: Tensor | None) -> Tensor:
        injected: Tensor = self.gain * self.proj(self.source(e, hidden_anchor))
        return injected

    def forward(self, t: int, z: Tensor, prepared: Tensor | None) -> Tensor:
        assert prepared is not None
        return z + prepared


class AnchoredInjection(Injection):
    """x = h* + z + γ·W src: a deviation z shown to the block as the hidden state it stands for."""

    def prepare(self, e: Tensor, hidden_anchor: Tensor | None) -> Tensor:
        return anchor_of(hidden_anchor) + super().prepare(e, hidden_anchor)


class StepSignal(Drive):
    """x = inner_t(z) + τ·P_step γ_t with γ_t the sinusoidal embedding of the step."""

    step_dependent = True

    def __init__(self, shape: Shape, inner: Drive, strength: float) -> None:
        super().__init__()
        self.inner = inner
        self.strength = strength
        self.proj = nn.Linear(shape.width, shape.width, bias=False)

    def prepare(self, e: Tensor, hidden_anchor: Tensor | None) -> Tensor | None:
        return self.inner.prepare(e, hidden_anchor)

    def forward(self, t: int, z: Tensor, prepared: Tensor | None) -> Tensor:
        # One row would be multiplied in an order that depends on the address of the weights; of several, one is taken.
        signal = self.proj(sinusoid(t, z.shape[-1], z).expand(EQUAL_ROWS, -1))[0]
        x: Tensor = self.inner(t, z, prepared) + self.strength * signal
        return x


class StepFilm(Drive):
    """x = (1 + ρ·g_t) ⊙ inner_t(z) + ρ·b_t with learned g_t, b_t per step; steps beyond the table reuse its last."""

    step_dependent = True

    def __init__(self, shape: Shape, inner: Drive, strength: float, steps: int) -> None:
        super().__init__()
        if steps < 1:
            raise UserError(f"film_steps must be at least 1, got {steps}")
        self.inner = inner
        self.strength = strength
        self.table = nn.Embedding(steps, 2 * shape.width)

    def prepare(self, e: Tensor, hidden_anchor: Tensor | None) -> Tensor | None:
        return self.inner.prepare(e, hidden_anchor)

    def forward(self, t: int, z: Tensor, prepared: Tensor | None) -> Tensor:
        row = self.table.weight[min(t, self.table.num_embeddings - 1)]
        scale, shift = (self.strength * row).chunk(2)
        x: Tensor = (1 + scale) * self.inner(t, z, prepared) + shift
        return x


def sinusoid(t: float, width: int, like: Tensor) -> Tensor:
    """γ_t = [sin(t ω_i), cos(t ω_i)] with ω_i = 10000^(−i / ⌈width/2⌉), formed in float64 where the device of `like`
    has it, and returned there in its type."""
    half = (width + 1) // 2
    number = torch.arange(half, dtype=wide(like.device), device=like.device)
    angles = t * torch.exp(-math.log(10_000.0) / half * number)
    return torch.cat([angles.sin(), angles.cos()])[:width].to(like.dtype)
