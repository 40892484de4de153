"""The bias-subtracted twin of a trajectory, and the exact linear maps that carry forcing from one step to the next.

Everything is for one input and any step map (t, Δ) -> T_t(Δ; e). Notation: t_0 first step, T horizon, n = T − t_0,
E_t = Δ_t − Δ̄_t. States have a leading dimension of 1, so that an input is one example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from scse.diagnostics.differentials import Map, check_finite
from scse.progress import Meter

StepMap = Callable[[int, Tensor], Tensor]

THEOREM_TARGET = 1e-6
ORDERS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96)
ROWS_AT_ONCE = 32  # bounds the memory of a batch of nodes and directions


@dataclass(frozen=True)
class PairedPaths:
    """Δ_{t+1} = T_t(Δ_t) and Δ̄_{t+1} = T_t(Δ̄_t) − b_t from the same Δ_{t_0}; [n + 1, …], and b_t [n, …]."""

    first: int
    ordinary: Tensor
    subtracted: Tensor
    forcing: Tensor

    @property
    def response(self) -> Tensor:
        """E_t = Δ_t − Δ̄_t [n + 1, …]"""
        return self.ordinary - self.subtracted

    @property
    def steps(self) -> range:
        """t_0 … T − 1"""
        return range(self.first, self.first + len(self.forcing))


def paired_paths(step: StepMap, start: Tensor, first: int, last: int) -> PairedPaths:
    """Both trajectories from Δ_{t_0} = `start` to the horizon `last`."""
    ordinary, subtracted, forcing = [start], [start], []
    for t in range(first, last):
        bias = step(t, torch.zeros_like(start))
        ordinary.append(step(t, ordinary[-1]))
        subtracted.append(step(t, subtracted[-1]) - bias)
        forcing.append(bias)
        check_finite(ordinary[-1] + subtracted[-1], t, "--to")
    return PairedPaths(first, torch.stack(ordinary), torch.stack(subtracted), torch.stack(forcing))


@cache
def gauss_legendre(order: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    return tuple(((nodes + 1) / 2).tolist()), tuple((weights / 2).tolist())


@dataclass(frozen=True)
class Secant:
    """A_t^sec = ∫_0^1 J T_t(Δ̄_t + ξE_t) dξ ≈ Σ_i w_i J T_t(Δ̄_t + ξ_i E_t), applied and never formed.

    The nodes of the rule are rows of one batch: every recurrence treats its rows independently.
    """

    map: Map
    subtracted: Tensor
    response: Tensor
    order: int

    def push(self, directions: Tensor) -> Tensor:
        """A_t^sec v for every v of a stack [K, …]"""
        points, weights = self._rule()

        def one(v: Tensor) -> Tensor:
            pushed: Tensor = torch.func.jvp(self.map, (points,), (v.expand_as(points),))[1]
            return (weights * pushed).sum(0, keepdim=True)

        stack: Tensor = torch.func.vmap(one, chunk_size=self._at_once)(directions)
        return stack

    def pull(self, covectors: Tensor) -> Tensor:
        """(A_t^sec)ᵀ v for every v of a stack [K, …]"""
        points, weights = self._rule()
        _, transposed, *_ = torch.func.vjp(self.map, points)

        def one(v: Tensor) -> Tensor:
            pulled: Tensor = transposed(weights * v)[0]
            return pulled.sum(0, keepdim=True)

        stack: Tensor = torch.func.vmap(one, chunk_size=self._at_once)(covectors)
        return stack

    def limited(self, order: int) -> Secant:
        """The same map by a rule of at most this order."""
        return replace(self, order=min(self.order, order))

    @property
    def _at_once(self) -> int:
        return max(1, ROWS_AT_ONCE // self.order)

    def _rule(self) -> tuple[Tensor, Tensor]:
        """The points on the segment and their weights, both with a row per node."""
        shape = (-1, *[1] * (self.response.dim() - 1))
        at = self.response
        nodes, weights = (
            torch.tensor(x, dtype=at.dtype, device=at.device).view(shape) for x in gauss_legendre(self.order)
        )
        return self.subtracted + nodes * self.response, weights


@dataclass(frozen=True)
class SecantMaps:
    """The secant maps of an interval, and how well they obey the lemma and the theorem.

    `lemma_residual` is the largest ‖E_{t+1} − A_t^sec E_t − b_t‖ / ‖E_{t+1}‖, `theorem_residual`
    ‖E_T − Σ_k p_{T,k}‖ / ‖E_T‖; the sum is formed from the inside out, A(A(b) + b) + b ….
    """

    maps: list[Secant]
    lemma_residual: float
    theorem_residual: float


def secant_maps(step: StepMap, paths: PairedPaths, meter: Meter) -> SecantMaps:
    """Secant maps of orders high enough for the theorem to hold to its target, or of the highest order there is."""
    for share in (10, 1e3, 1e5):
        found = _secant_maps(step, paths, THEOREM_TARGET / share, meter)
        if found.theorem_residual <= THEOREM_TARGET:
            break
    return found


def _secant_maps(step: StepMap, paths: PairedPaths, tolerance: float, meter: Meter) -> SecantMaps:
    response, maps, errors = paths.response, [], []
    total = torch.zeros_like(response[0])
    position = 0  # the two trajectories part, so orders rise along the interval and never need to fall
    for k, t in enumerate(paths.steps):
        while True:
            current = Secant(partial(step, t), paths.subtracted[k], response[k], ORDERS[position])
            carried, image = current.push(torch.stack([total, response[k]]))
            errors.append(relative(response[k + 1] - image - paths.forcing[k], response[k + 1]))
            if errors[-1] <= tolerance or current.order == ORDERS[-1]:
                break
            errors.pop()
            position += 1
        total = carried + paths.forcing[k]
        maps.append(current)
        meter.advance(1)
    return SecantMaps(maps, max(errors), relative(response[-1] - total, response[-1]))


def contributions(maps: Sequence[Secant], forcing: Tensor, meter: Meter) -> Tensor:
    """p_{T,k} = Φ_E(T, k+1) b_k [n, …]: every step's forcing carried to the horizon, all of them together."""
    carried = forcing[:1]
    for k in range(1, len(forcing)):
        carried = torch.cat([maps[k].push(carried), forcing[k : k + 1]])
        meter.advance(1)
    return carried


def seen_through(covectors: Tensor, maps: Sequence[Secant], forcing: Tensor, meter: Meter) -> Tensor:
    """⟨v, p_{T,k}⟩ for every v of a stack and every step [K, n], by carrying v backwards: Φ_E(T, k+1)ᵀ v."""
    found = torch.zeros(len(covectors), len(forcing), dtype=forcing.dtype, device=forcing.device)
    for k in reversed(range(len(forcing))):
        found[:, k] = (covectors * forcing[k]).flatten(1).sum(1)
        if k:
            covectors = maps[k].pull(covectors)
        meter.advance(1)
    return found


def relative(error: Tensor, scale: Tensor) -> float:
    """‖error‖ / ‖scale‖, and ‖error‖ itself where the scale is zero."""
    size = float(scale.norm())
    return float(error.norm()) / (size if size > 0 else 1.0)
