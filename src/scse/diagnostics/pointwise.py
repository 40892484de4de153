"""Pointwise diagnostics of the one-step map T_t(Δ; e); without an anchor, of the states alone.

Nothing here knows a family: all of it is written against `deviation_map`. Shapes: B batch, L positions, d width.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from scse.data import Readable
from scse.diagnostics.differentials import (
    SMALLEST,
    LargestGain,
    check_finite,
    differentiable,
    drawn,
    largest_gain,
    norms,
    pull,
    push,
    unit,
)
from scse.evaluation.perplexity import whole_windows
from scse.model import LoopedLM, State
from scse.progress import SILENT, Meter
from scse.recurrence import Frame, Recurrence, deviation_map

RATIO_FLOOR = 1e-12
FINITE_DIFFERENCE = 1e-3
DIRECTIONS = 4
EXPANSION_WINDOWS = 4  # of each batch: a power iteration costs as much as dozens of steps
EXPANSION_ITERATIONS = 24
WORST_OF_BATCHES = ("largest_anchor_energy", "expansion_residual")


@dataclass(frozen=True)
class StepDiagnosis:
    """One step, averaged over batches.

    `bias_ratio` is R_t = mean(b_t²) / max(mean((Δ_{t+1} − Δ_t)²), 1e-12) of the map as it is used, `raw_bias_ratio` the
    same before the mask; `anchor_energy` is E_{Δ,t} = mean(Δ_t²), `largest_anchor_energy` that of the window where it
    is largest. `gain` and the largest local `expansion` are None at steps where they were not asked for;
    `expansion_residual` says how far its iteration has converged, in the window where it has least.
    `input_dependence` is A(h_t) / A(e) with A of `apart`; None where there are no two windows to tell apart.
    Of a family without an anchor only that and the energy of the updates h_{t+1} − h_t are known; the rest is None.
    """

    step: int
    bias_ratio: float | None = None
    raw_bias_ratio: float | None = None
    bias_energy: float | None = None
    update_energy: float = 0.0
    anchor_energy: float | None = None
    largest_anchor_energy: float | None = None
    input_dependence: float | None = None
    gain: float | None = None
    expansion: float | None = None
    expansion_residual: float | None = None


@torch.no_grad()
def diagnose(
    model: LoopedLM,
    tokens: Readable,
    steps: int,
    batch: int,
    batches: int,
    gain_steps: Sequence[int],
    meter: Meter = SILENT,
) -> list[StepDiagnosis]:
    """Diagnose steps 0 … steps − 1 of ordinary trajectories; ratios are formed per batch and then averaged.

    All batches have one shape, as in the paper.
    """
    wide = copy.deepcopy(model).double()
    batches_of_steps: list[list[dict[str, float]]] = []
    for number, (inputs, _) in enumerate(whole_windows(tokens, model.config.shape.context, batch, batches)):
        (ids,) = model.place(inputs)
        states = model.unroll(ids)
        measured: list[dict[str, float]] = []
        bias, inputs_apart = (0.0, 0.0), 0.0
        for t, (state, following) in enumerate(pairwise(next(states) for _ in range(steps + 1))):
            anchored = state.frame.anchor is not None
            moved = following.deviation - state.deviation if anchored else following.bare - state.bare
            check_finite(moved, t, "--steps")
            if anchored and (t == 0 or model.recurrence.step_dependent):
                bias = _bias_energies(model.recurrence, t, state.frame)
            measured.append(_energies(bias, state.deviation, moved) if anchored else {"update_energy": _energy(moved)})
            inputs_apart = inputs_apart or apart(state.frame.embedding)
            if inputs_apart:
                measured[t]["input_dependence"] = apart(state.bare) / inputs_apart
            if anchored and t in gain_steps:
                generator = torch.Generator().manual_seed(1000 * number + t)
                measured[t]["gain"] = random_direction_gain(wide, ids, t, state.deviation, generator)
                measured[t] |= _expansion(state, generator)
            meter.advance(1)
        batches_of_steps.append(measured)
    return [_over_batches(t, same_step) for t, same_step in enumerate(zip(*batches_of_steps, strict=True))]


def _over_batches(step: int, measured: Sequence[dict[str, float]]) -> StepDiagnosis:
    summary = {}
    for name in measured[0]:
        values = [batch[name] for batch in measured]
        summary[name] = max(values) if name in WORST_OF_BATCHES else float(np.mean(values))
    return StepDiagnosis(step, **summary)


def _bias_energies(recurrence: Recurrence, t: int, frame: Frame) -> tuple[float, float]:
    """mean(b_t²) of the map as it is used, and of the raw map."""
    zero = torch.zeros_like(frame.embedding)
    used, raw = (deviation_map(recurrence, t, zero, frame, masked) for masked in (True, False))
    check_finite(raw, t, "--steps")
    return _energy(used), _energy(raw)


def _energies(biases: tuple[float, float], deviation: Tensor, moved: Tensor) -> dict[str, float]:
    bias, raw = biases
    update = _energy(moved)
    floor = max(update, RATIO_FLOOR)
    return {
        "bias_ratio": bias / floor,
        "raw_bias_ratio": raw / floor,
        "bias_energy": bias,
        "update_energy": update,
        "anchor_energy": _energy(deviation),
        "largest_anchor_energy": float(deviation.double().pow(2).mean(dim=(1, 2)).max()),
    }


def apart(states: Tensor) -> float:
    """A(h) = (mean of ‖ĥ(x)[l] − ĥ(x')[l]‖²)^½ over pairs of windows x ≠ x' and positions l, with ĥ = h/‖h‖.

    The root-mean-square distance between the directions in which the states of two inputs lie: 0 where they are the
    same, √2 where they are unrelated. Core and head see a state through an RMS normalisation, so its length does not
    count. 0 for a single window, and for states that are 0.
    """
    rows = states.double()
    directions = rows / torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp_min(SMALLEST)
    # The mean square over pairs is twice the sample variance: no pair has to be formed.
    variance = directions.var(dim=0, correction=1).sum(-1).mean() if len(rows) > 1 else torch.zeros(())
    return float((2 * variance).sqrt())


def _expansion(state: State, generator: torch.Generator) -> dict[str, float]:
    few = torch.arange(min(len(state.z), EXPANSION_WINDOWS), device=state.z.device)
    found = local_expansion(state.recurrence, state.t, state.deviation[few], state.frame.rows(few), generator)
    return {"expansion": float(found.value.mean()), "expansion_residual": float(found.residual.max())}


def local_expansion(
    recurrence: Recurrence, t: int, deviation: Tensor, frame: Frame, generator: torch.Generator
) -> LargestGain:
    """σ_max(J T_t(Δ)) of each example, the most that one step stretches any direction, by power iteration on JᵀJ."""

    def step(at: Tensor) -> Tensor:
        return deviation_map(recurrence, t, at, frame)

    start = drawn(deviation.shape, generator, deviation)
    with differentiable():
        return largest_gain(
            lambda v: push(step, deviation, v[None])[0],
            lambda v: pull(step, deviation, v),
            start,
            EXPANSION_ITERATIONS,
        )


@torch.no_grad()
def random_direction_gain(
    wide: LoopedLM, inputs: Tensor, t: int, deviation: Tensor, generator: torch.Generator
) -> float:
    """‖T_t(Δ + εv) − T_t(Δ)‖ / ε for random unit directions v of each example, averaged over four and the batch.

    In float64: a direction spread over a whole sequence moves each number by less than float32 resolves.
    """
    frame = wide.recurrence.begin(wide.embed(inputs))
    at = deviation.double()
    base = deviation_map(wide.recurrence, t, at, frame)
    gains = []
    for _ in range(DIRECTIONS):
        v = drawn(at.shape, generator, at)
        moved = deviation_map(wide.recurrence, t, at + FINITE_DIFFERENCE * unit(v), frame)
        gains.append(norms(moved - base) / FINITE_DIFFERENCE)
    return float(torch.stack(gains).mean())


def _energy(x: Tensor) -> float:
    """N⁻¹‖x‖_F² in float64."""
    return float(x.double().pow(2).mean())
