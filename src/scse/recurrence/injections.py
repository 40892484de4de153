"""Drives that bring the input back in at every step, as other projects do. `n` is RMS normalisation without weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scse.config.model import Shape
from scse.nn import rms_normalise
from scse.recurrence.drives import Drive


class Recall(Drive):
    """What the drives here share: the input e they bring back, as n(e) or as it is."""

    adds_nothing = False

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
        self.proj = nn.Linear(2 * shape.width, shape.width, bias=False)

    def prepare(self, e: Tensor, hidden_anchor: Tensor | None) -> Tensor:
        return F.linear(self.source(e), self.proj.weight[:, e.shape[-1] :])

    def forward(self, t: int, z: Tensor, prepared: Tensor | None) -> Tensor:
        assert prepared is not None
        return F.linear(z, self.proj.weight[:, : z.shape[-1]]) + prepared


class DecayedInjection(Recall):
    """x = λ ⊙ z + u with u = δ ⊙ (W n(e)), λ = exp(−δ ⊙ e^A), δ = softplus(d).

    A and d are learned from 0, W from the identity. λ is between 0 and 1 in every channel whatever is learned, so that
    the part of the step that is linear contracts.
    """

    def __init__(self, shape: Shape, normalise: bool) -> None:
        super().__init__(shape, normalise)
        self.log_rate = nn.Parameter(torch.zeros(shape.width))
        self.step_size = nn.Parameter(torch.zeros(shape.width))
        self.proj = nn.Linear(shape.width, shape.width, bias=False)

    @torch.no_grad()
    def start_values(self) -> None:
        nn.init.eye_(self.proj.weight)

    def prepare(self, e: Tensor, hidden_anchor: Tensor | None) -> Tensor:
        injected: Tensor = F.softplus(self.step_size) * self.proj(self.source(e))
        return injected

    def decayed(self, z: Tensor) -> Tensor:
        """λ ⊙ z"""
        return torch.exp(-F.softplus(self.step_size) * self.log_rate.exp()) * z

    def forward(self, t: int, z: Tensor, prepared: Tensor | None) -> Tensor:
        assert prepared is not None
        return self.decayed(z) + prepared


class OrthogonalInjection(DecayedInjection):
    """x = r − (⟨r, u⟩ / (‖u‖² + ε))·u + u with r = λ ⊙ z, and λ, u as in `DecayedInjection`.

    Along u every step starts from u itself; across it the state is carried on.
    """

    def forward(self, t: int, z: Tensor, prepared: Tensor | None) -> Tensor:
        assert prepared is not None
        u, r = prepared, self.decayed(z)
        along = (r * u).sum(-1, keepdim=True) / (u.pow(2).sum(-1, keepdim=True) + self.eps)
        return r - along * u + u
