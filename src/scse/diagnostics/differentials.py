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

from scse.devices import send
from scse.errors import RunFailure

Map = Callable[[Tensor], Tensor]

DIRECTIONS_AT_ONCE = 16  # bounds the memory of a push; more are not faster
SMALLEST = 1e-30
ROUNDING = 100


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


def drawn(shape: torch.Size, generator: torch.Generator, like: Tensor) -> Tensor:
    """Standard normal numbers by a generator of the host, the same whatever device they are for."""
    return send(torch.randn(shape, generator=generator, dtype=like.dtype), like.device)


def norms(x: Tensor) -> Tensor:
    """The Euclidean norm of each example [B]."""
    found: Tensor = torch.linalg.vector_norm(x.flatten(1), dim=1)
    return found


def unit(x: Tensor) -> Tensor:
    """Each example divided by its norm; zero stays zero."""
    return x / _like(norms(x).clamp_min(SMALLEST), x)


def _like(values: Tensor, x: Tensor) -> Tensor:
    """One value per example [B], shaped to be multiplied with examples."""
    return values.view(-1, *[1] * (x.dim() - 1))


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
    small = torch.zeros(rows, iterations, iterations, dtype=torch.float64, device=start.device)
    for k in range(iterations):
        image = transposed(apply(basis[k]))
        rounding = ROUNDING * torch.finfo(start.dtype).eps * norms(image).double()
        small[:, k, k] = _dot(image, basis[k])
        for q in (*basis, *basis):  # twice, so that rounding does not bring old directions back
            image = image - q * _like(_dot(image, q).to(q), q)
        rest = norms(image).double()
        # Nothing new is left: the noise that remains must not be taken for a direction.
        image = torch.where(_like(rest <= rounding, image), 0.0, image)
        rest = torch.where(rest <= rounding, 0.0, rest)
        if k + 1 < iterations:
            small[:, k, k + 1] = small[:, k + 1, k] = rest
            basis.append(unit(image))
    squares, vectors = torch.linalg.eigh(small)
    best, weights = squares[:, -1].clamp_min(SMALLEST), vectors[:, :, -1]
    found = sum((q * _like(w.to(q), q) for q, w in zip(basis, weights.T, strict=True)), torch.zeros_like(start))
    return LargestGain(best.sqrt(), rest * weights[:, -1].abs() / best, found)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    """The inner product of each example [B], in float64."""
    return (x.double() * y.double()).flatten(1).sum(1)


def check_finite(state: Tensor, t: int, option: str) -> None:
    """Name the step after which a state is no longer finite; `option` is what shortens the unroll."""
    if not bool(torch.isfinite(state).all()):
        raise RunFailure(f"the state is no longer finite after step {t}; stop before it with {option} {max(t, 1)}")
