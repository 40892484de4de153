"""The counterfactual theory of forcing, evaluated: what the bias b_t did between two depths, also to the loss.

One input at a time, in float64. Notation as in `secants`; J_e(Δ) is the mean negative log-likelihood per token of the
readout at h* + Δ, in nats.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import nnls
from torch import Tensor

from scse.config.use import VECTOR_ORDER
from scse.data import UNCOUNTED, Readable
from scse.diagnostics.differentials import Map, check_finite, differentiable, drawn, largest_gain
from scse.diagnostics.secants import (
    ORDERS,
    Secant,
    StepMap,
    contributions,
    gauss_legendre,
    paired_paths,
    relative,
    secant_maps,
    seen_through,
)
from scse.evaluation.perplexity import whole_windows
from scse.model import LoopedLM
from scse.progress import SILENT, Meter
from scse.recurrence import deviation_map
from scse.recurrence.base import anchor_of

NORM_ITERATIONS = 12  # for the first secant map; the next ones start where the last ended
WARM_NORM_ITERATIONS = 3
LOSS_TARGET = 1e-8
SEPARABLE = 1e-6
NEUTRAL_GAP = 1e-3
PASSES = 4  # over the interval: secant maps, what is seen through covectors, vectors, norms

Loss = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Contraction:
    """‖E_T‖ ≤ B(1 − qⁿ)/(1 − q) if q < 1, with q = max ‖A_t^sec‖₂ (estimated from below) and B = max ‖b_t‖₂.

    `bound` is None where q ≥ 1 and the corollary says nothing.
    """

    q: float
    B: float
    bound: float | None


@dataclass(frozen=True)
class LossGap:
    """J_e(Δ_T) − J_e(Δ̄_T) = ∫_0^1 ⟨∇J_e(Δ̄_T + ξE_T), E_T⟩ dξ.

    `gradient` is the mean gradient ∫∇J_e dξ, so that ⟨gradient, p_{T,k}⟩ is what step k's forcing did to the loss;
    `slope` is the smallest ⟨∇J_e, Ê_T⟩ seen on the segment, the μ of the proposition where it is positive.
    """

    ordinary: float
    subtracted: float
    residual: float
    slope: float
    gradient: Tensor

    @property
    def gap(self) -> float:
        return self.ordinary - self.subtracted


@dataclass(frozen=True)
class InputTheory:
    """All quantities of one input; the arrays [n] are per step k of the interval.

    `forcing` ‖b_k‖, `arriving` ‖p_{T,k}‖, `along` ⟨p_{T,k}, Ê_T⟩ (they sum to `response` = ‖E_T‖), `loss`
    ⟨∫∇J_e dξ, p_{T,k}⟩ (they sum to the loss gap). `beta` is the largest β of the coherence corollary; `order` and
    `lemma_residual` are those of the worst step.

    What is seen through a covector (`along`, `loss`) costs one sweep and uses the full order. `arriving`, `beta` and q
    need all n vectors, n²/2 products, and use a lower one; `vector_residual` is the theorem's residual there.
    """

    forcing: np.ndarray
    arriving: np.ndarray
    along: np.ndarray
    loss: np.ndarray
    response: float
    order: int
    lemma_residual: float
    theorem_residual: float
    vector_residual: float
    contraction: Contraction
    beta: float
    loss_gap: LossGap

    @property
    def coherence(self) -> float:
        """‖E_T‖ / Σ_k ‖p_{T,k}‖: 1 when all contributions point the same way, near 0 when they cancel."""
        total = float(self.arriving.sum())
        return self.response / total if total > 0 else 0.0

    @property
    def verdict(self) -> str:
        return verdict(self.loss_gap.gap)


def verdict(gap: float) -> str:
    """What the forcing does to the loss; gaps of at most 0.001 nats per token (0.1 % of perplexity) are neutral."""
    if abs(gap) <= NEUTRAL_GAP:
        return "neutral"
    return "harmful" if gap > 0 else "beneficial"


def theory(
    model: LoopedLM,
    tokens: Readable,
    first: int,
    last: int,
    inputs: int,
    meter: Meter = SILENT,
    order: int = VECTOR_ORDER,
) -> list[InputTheory]:
    """Analyse the first `inputs` windows from step `first` of their ordinary trajectories to the horizon `last`.

    The zero-deviation mask is a jump, so masked recurrences are analysed on the raw map before it, with that map's own
    forcing. Where the mask is active, as on every trajectory that computes anything, both maps agree.
    """
    wide = copy.deepcopy(model).double().eval()
    found = []
    for window in whole_windows(tokens, model.config.shape.context, 1, inputs):
        ids, targets = model.place(*window)
        with differentiable():
            step, loss, start = one_input(wide, ids, targets, first)
            found.append(analyse(step, loss, start, first, last, meter, order))
    return found


def one_input(model: LoopedLM, ids: Tensor, targets: Tensor, first: int) -> tuple[StepMap, Loss, Tensor]:
    """The raw one-step map of an input, its loss J_e, and its deviation after `first` loops."""
    frame = model.recurrence.begin(model.embed(ids))
    anchor = anchor_of(frame.hidden_anchor)

    def step(t: int, deviation: Tensor) -> Tensor:
        return deviation_map(model.recurrence, t, deviation, frame, masked=False)

    def loss(deviation: Tensor) -> Tensor:
        logits = model.readout(model.recurrence.read_with(anchor + deviation, frame))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=UNCOUNTED)

    start = model.recurrence.coordinates.deviation(frame.start, frame)
    for t in range(first):
        start = step(t, start)
        check_finite(start, t, "--to")
    return step, loss, start


def analyse(
    step: StepMap, loss: Loss, start: Tensor, first: int, last: int, meter: Meter = SILENT, order: int = VECTOR_ORDER
) -> InputTheory:
    """The lemma, the theorem, the corollaries and the proposition for any differentiable step map and loss."""
    paths = paired_paths(step, start, first, last)
    secants = secant_maps(step, paths, meter)
    response = paths.response[-1]
    size = float(response.norm())
    gap = loss_gap(loss, paths.subtracted[-1], response)
    along, onto_loss = seen_through(
        torch.stack([response / (size or 1.0), gap.gradient]), secants.maps, paths.forcing, meter
    )
    coarse = [secant.limited(order) for secant in secants.maps]
    vectors = contributions(coarse, paths.forcing, meter)
    return InputTheory(
        forcing=_norms(paths.forcing),
        arriving=_norms(vectors),
        along=along.cpu().numpy(),
        loss=onto_loss.cpu().numpy(),
        response=size,
        order=max(secant.order for secant in secants.maps),
        lemma_residual=secants.lemma_residual,
        theorem_residual=secants.theorem_residual,
        vector_residual=relative(response - vectors.sum(0), response),
        contraction=contraction(coarse, paths.forcing, meter),
        beta=largest_beta(vectors),
        loss_gap=gap,
    )


def contraction(secants: Sequence[Secant], forcing: Tensor, meter: Meter = SILENT) -> Contraction:
    """Measure q and B. The first secant map carries nothing (E_{t_0} = 0), so the others decide."""
    q, B = 0.0, float(_norms(forcing).max())
    direction = drawn(forcing[0].shape, torch.Generator().manual_seed(0), forcing)
    for k, secant in enumerate(secants[1:]):
        iterations = WARM_NORM_ITERATIONS if k else NORM_ITERATIONS
        estimate = largest_gain(*_both_ways(secant), direction, iterations)
        q, direction = max(q, float(estimate.value)), estimate.direction
        meter.advance(1)
    return Contraction(q, B, geometric_sum(q, len(forcing)) * B if q < 1 else None)


def _both_ways(secant: Secant) -> tuple[Map, Map]:
    return lambda v: secant.push(v[None])[0], lambda v: secant.pull(v[None])[0]


def geometric_sum(ratio: float, terms: int) -> float:
    """Σ_{l=0}^{n−1} ρ^l"""
    return sum(ratio**power for power in range(terms))


def spectral_response(v: Tensor, forcing: Tensor, eigenvalue: float, steps: int) -> float:
    """⟨v, E_T⟩ = ⟨v, b⟩ Σ_l ρ^l, where Aᵀv = ρv and both A_t^sec = A and b_t = b are the same at every step."""
    return float((v * forcing).sum()) * geometric_sum(eigenvalue, steps)


def largest_beta(contributions: Tensor) -> float:
    """max_v min_k ⟨v, p_{T,k}⟩ over unit vectors v, or 0 where no direction has all contributions on its side.

    With x = v/β this is the shortest x with ⟨x, p_k⟩ ≥ 1 for every k: least distance programming, which Lawson and
    Hanson reduce to non-negative least squares.
    """
    vectors = contributions.flatten(1).cpu().numpy()
    scale = float(np.linalg.norm(vectors, axis=1).max())
    if scale == 0:
        return 0.0
    left, sizes, _ = np.linalg.svd(vectors / scale, full_matrices=False)
    rows = left * sizes  # the same inner products in n dimensions
    system = np.vstack([rows.T, np.ones(len(rows))])
    weights, distance = nnls(system, np.append(np.zeros(rows.shape[1]), 1.0))
    if distance < SEPARABLE:
        return 0.0
    direction = rows.T @ weights
    lowest = float((rows @ direction).min() / np.linalg.norm(direction))
    return max(lowest, 0.0) * scale


def loss_gap(loss: Loss, subtracted: Tensor, response: Tensor) -> LossGap:
    """Both losses and the integral between them, its order doubled until they agree or the order is the highest."""
    ordinary, without = float(loss(subtracted + response)), float(loss(subtracted))
    size = float(response.norm()) or 1.0
    order = 4
    while True:
        nodes, weights = gauss_legendre(order)
        gradients = [torch.func.grad(loss)(subtracted + node * response) for node in nodes]
        slopes = [float((gradient * response).sum()) / size for gradient in gradients]
        integral = size * sum(w * slope for w, slope in zip(weights, slopes, strict=True))
        residual = abs(ordinary - without - integral)
        if residual <= LOSS_TARGET or order >= ORDERS[-1]:
            break
        order *= 2
    mean = sum((w * gradient for w, gradient in zip(weights, gradients, strict=True)), torch.zeros_like(response))
    return LossGap(ordinary, without, residual, min(slopes), mean)


def _norms(stack: Tensor) -> np.ndarray:
    found: np.ndarray = stack.flatten(1).norm(dim=1).cpu().numpy()
    return found
