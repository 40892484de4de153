"""Drives that bring the input back in at every step, as other projects do. `n` is RMS normalisation without weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scse.config.model import Shape
from scse.nn import rms_normalise
from scse.nn.products import Linear, of_part
from scse.recurrence.base import anchor_of
from scse.recurrence.modifiers import Decay
from scse.recurrence.slots import Drive


class Recall(Drive):
    """What the drives here share: the input e they bring back, as n(e) or as it is."""

    def __init__(self, shape: Shape, normalise: bool) -> None:
        super().__init__()
        self.eps = shape.norm_eps
        self.normalise = normalise

    def source(self, e: Tensor) -> Tensor:
        return rms_normalise(e, self.eps) if self.normalise else e


class Concatenation(Recall):
    """x = A[z; n(e)] with a d × 2d matrix A"""

    def __init__(self, shape: Shape, normalise: bool) -> None:
        super().__init__(shape, normalise)
        self.proj = Linear(2 * shape.width, shape.width, bias=False)

    def prepare(self, e: Tensor, hidden_anchor: Tensor | None) -> Tensor:
        return of_part(self.proj, self.source(e), e.shape[-1], 2 * e.shape[-1])

    def forward(self, t: int, z: Tensor, prepared: Tensor | None) -> Tensor:
        assert prepared is not None
        return of_part(self.proj, z, 0, 2 * z.shape[-1]) + prepared


class DecayedInjection(Recall):
    """x = λ ⊙ z + u with u = δ ⊙ (W n(e)), λ = exp(−δ ⊙ e^A), δ = softplus(d).

    A and d are learned from 0, W from the identity. λ is between 0 and 1 in every channel whatever is learned, so that
    the part of the step that is linear contracts. Without decay λ is 1.
    """

    def __init__(self, shape: Shape, normalise: bool, decay: bool = True) -> None:
        super().__init__(shape, normalise)
        self.log_rate = nn.Parameter(torch.zeros(shape.width)) if decay else None
        self.step_size = nn.Parameter(torch.zeros(shape.width))
        self.proj = Linear(shape.width, shape.width, bias=False)

    @torch.no_grad()
    def start_values(self) -> None:
        nn.init.eye_(self.proj.weight)

    def prepare(self, e: Tensor, hidden_anchor: Tensor | None) -> Tensor:
        injected: Tensor = F.softplus(self.step_size) * self.proj(self.source(e))
        return injected

    def decayed(self, z: Tensor) -> Tensor:
        """λ ⊙ z"""
        if self.log_rate is None:
            return z
        return torch.exp(-F.softplus(self.step_size) * self.log_rate.exp()) * z

    def forward(self, t: int, z: Tensor, prepared: Tensor | None) -> Tensor:
        assert prepared is not None
        return self.decayed(z) + prepared


class DecayedState(Drive):
    """x = λ ⊙ z with λ = exp(−softplus(d)), d learned from 0: `DecayedInjection` where nothing is brought back in."""

    keeps_zero = True

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.keep = Decay(shape)

    def forward(self, t: int, z: Tensor, prepared: Tensor | None) -> Tensor:
        kept: Tensor = self.keep(z, z)
        return kept


class OrthogonalInjection(DecayedInjection):
    """x = r − (⟨r, u⟩ / (‖u‖² + ε))·u + u with r = λ ⊙ z, and λ, u as in `DecayedInjection`.

    Along u every step starts from u itself; across it the state is carried on.
    """

    def forward(self, t: int, z: Tensor, prepared: Tensor | None) -> Tensor:
        assert prepared is not None
        u, r = prepared, self.decayed(z)
        along = (r * u).sum(-1, keepdim=True) / (u.pow(2).sum(-1, keepdim=True) + self.eps)
        return r - along * u + u


class ProportionalRecall(Recall):
    """x = Δ + γ·ρ(Δ)·n(u), u = W n(e), with ρ(Δ) = mean(Δ²)/√(mean(Δ²) + ε), the rms of Δ where that is above √ε.

    What is recalled is as loud as the deviation it joins, times a learned γ from 1. So the core, which normalises what
    it sees, sees the same share of the input however far the state has gone, and of Δ = 0 it sees 0. `orthogonal` takes
    out of u its part along the anchor, u − (⟨u, h*⟩/(‖h*‖² + ε))h*, which the readout h* + Δ has anyway.
    """

    keeps_zero = True

    def __init__(self, shape: Shape, orthogonal: bool) -> None:
        super().__init__(shape, normalise=True)
        self.orthogonal = orthogonal
        self.proj = Linear(shape.width, shape.width, bias=False)
        self.gain = nn.Parameter(torch.ones(1))  # one number, but FSDP2 refuses scalars

    def prepare(self, e: Tensor, hidden_anchor: Tensor | None) -> Tensor:
        u: Tensor = self.proj(self.source(e))
        if self.orthogonal:
            anchor = anchor_of(hidden_anchor)
            along = (u * anchor).sum(-1, keepdim=True) / (anchor.pow(2).sum(-1, keepdim=True) + self.eps)
            u = u - along * anchor
        return self.gain * rms_normalise(u, self.eps)

    def forward(self, t: int, z: Tensor, prepared: Tensor | None) -> Tensor:
        assert prepared is not None
        energy = z.pow(2).mean(-1, keepdim=True)
        return z + energy * torch.rsqrt(energy + self.eps) * prepared
