"""Derivatives of maps by Jacobian-vector products; a Jacobian is never formed.

Shapes: B examples, K directions; an example is everything behind the first dimension of a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from scse.errors import RunFailure

Map = Callable[[Tensor], Tensor]

DIRECTIONS_AT_ONCE = 16  # bounds the memory of a push; more are not faster
SMALLEST = 1e-30


@contextmanager
def differentiable() -> Iterator[None]:
    """Derivatives in both modes work inside, and nothing records a graph: fused attention has no forward mode."""
    with sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        yield


def push(f: Map, at: Tensor, directions: Tensor) -> Tensor:
    """J_f(at)·v for every v of a stack [K, *at.shape]; f itself is evaluated once per group of directions."""

    def one(v: Tensor) -> Tensor:
        pushed: Tensor = torch.func.jvp(f, (at,), (v,))[1]
        return pushed

    stack: Tensor = torch.func.vmap(one, chunk_size=DIRECTIONS_AT_ONCE)(directions)
    return stack


def pull(f: Map, at: Tensor, v: Tensor) -> Tensor:
    """J_f(at)ᵀ·v"""
    _, transposed, *_ = torch.func.vjp(f, at)
    pulled: Tensor = transposed(v)[0]
    return pulled


def norms(x: Tensor) -> Tensor:
    """The Euclidean norm of each example [B]."""
    found: Tensor = torch.linalg.vector_norm(x.flatten(1), dim=1)
    return found


def unit(x: Tensor) -> Tensor:
    """Each example divided by its norm; zero stays zero."""
    return x / norms(x).clamp_min(SMALLEST).view(-1, *[1] * (x.dim() - 1))


@dataclass(frozen=True)
class LargestGain:
    """σ_max of a linear map A per example [B], estimated from below.

    `residual` is ‖AᵀAy − σ²y‖ / σ² of the unit vector y found: AᵀA has an eigenvalue that close to σ². `direction` is
    that y, a good start for a nearby map.
    """

    value: Tensor
    residual: Tensor
    direction: Tensor


def largest_gain(apply: Map, transposed: Map, start: Tensor, iterations: int) -> LargestGain:
    """The power iteration v ← AᵀAv, with the best σ in the whole space its vectors span (Lanczos).

    The last vector alone would not do: one step of a recurrence is nearly the identity, so the few directions that
    grow need a hundred plain iterations to stand out, and an estimate that rests looks like one that has converged.
    """
    rows = len(start)
    basis = [unit(start)]
    small = torch.zeros(rows, iterations, iterations, dtype=torch.float64)
    for k in range(iterations):
        image = transposed(apply(basis[k]))
        small[:, k, k] = _dot(image, basis[k])
        for q in (*basis, *basis):  # twice, so that rounding does not bring old directions back
            image = image - q * _dot(image, q).to(q).view(-1, *[1] * (q.dim() - 1))
        rest = norms(image).double()
        if k + 1 < iterations:
            small[:, k, k + 1] = small[:, k + 1, k] = rest
            basis.append(unit(image))
    squares, vectors = torch.linalg.eigh(small)
    best, weights = squares[:, -1].clamp_min(SMALLEST), vectors[:, :, -1]
    found = sum((q * w.to(q).view(-1, *[1] * (q.dim() - 1)) for q, w in zip(basis, weights.T, strict=True)), start * 0)
    return LargestGain(best.sqrt(), rest * weights[:, -1].abs() / best, found)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    """The inner product of each example [B], in float64."""
    return (x.double() * y.double()).flatten(1).sum(1)


def check_finite(state: Tensor, t: int, option: str) -> None:
    """Name the step after which a state is no longer finite; `option` is what shortens the unroll."""
    if not bool(torch.isfinite(state).all()):
        raise RunFailure(f"the state is no longer finite after step {t}; stop before it with {option} {max(t, 1)}")
