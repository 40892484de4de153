"""Pointwise diagnostics of the one-step map T_t(Δ; e), for every family that has an anchor.

Nothing here knows a family: all of it is written against `deviation_map`. Shapes: B batch, L positions, d width.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from scse.errors import RunFailure
from scse.evaluation.perplexity import windows
from scse.model import LoopedLM
from scse.progress import Meter
from scse.recurrence import Frame, Recurrence, deviation_map

RATIO_FLOOR = 1e-12
FINITE_DIFFERENCE = 1e-3
DIRECTIONS = 4


@dataclass(frozen=True)
class Decomposition:
    """T_t(Δ; e) = Δ + b + a: the forcing bias b = T_t(0; e), and the state-dependent rest a."""

    deviation: Tensor
    bias: Tensor
    state_dependent: Tensor


@dataclass(frozen=True)
class StepDiagnosis:
    """One step, averaged over batches.

    `bias_ratio` is R_t = mean(b_t²) / max(mean((Δ_{t+1} − Δ_t)²), 1e-12) of the map as it is used, `raw_bias_ratio` the
    same before the mask; `anchor_energy` is mean(Δ_t²); `gain` is None at steps where it was not asked for.
    """

    step: int
    bias_ratio: float
    raw_bias_ratio: float
    bias_energy: float
    update_energy: float
    anchor_energy: float
    gain: float | None


def decompose(recurrence: Recurrence, t: int, deviation: Tensor, frame: Frame, masked: bool = True) -> Decomposition:
    """The exact decomposition of one step at a given deviation."""
    bias = deviation_map(recurrence, t, torch.zeros_like(deviation), frame, masked)
    following = deviation_map(recurrence, t, deviation, frame, masked)
    return Decomposition(deviation, bias, following - bias - deviation)


@torch.no_grad()
def diagnose(
    model: LoopedLM,
    tokens: np.ndarray,
    steps: int,
    batch: int,
    batches: int,
    gain_steps: Sequence[int],
    meter: Meter,
) -> list[StepDiagnosis]:
    """Diagnose steps 0 … steps − 1 of ordinary trajectories; ratios are formed per batch and then averaged."""
    wide = copy.deepcopy(model).double()
    rows: list[np.ndarray] = []
    for number, (inputs, _) in enumerate(windows(tokens, model.config.shape.context, batch, batch * batches)):
        states = model.unroll(inputs)
        values = np.full((steps, 6), math.nan)
        for t, (state, following) in enumerate(pairwise(next(states) for _ in range(steps + 1))):
            moved = following.deviation - state.deviation
            _check_finite(moved, t)
            values[t, :5] = _energies(model.recurrence, t, state.frame, state.deviation, moved)
            if t in gain_steps:
                generator = torch.Generator().manual_seed(1000 * number + t)
                values[t, 5] = random_direction_gain(wide, inputs, t, state.deviation, generator)
            meter.advance(1)
        rows.append(values)
    return [_averaged(t, values) for t, values in enumerate(np.mean(rows, axis=0).tolist())]


def _averaged(step: int, values: list[float]) -> StepDiagnosis:
    bias_ratio, raw_bias_ratio, bias, update, anchor, gain = values
    return StepDiagnosis(step, bias_ratio, raw_bias_ratio, bias, update, anchor, None if math.isnan(gain) else gain)


def _energies(recurrence: Recurrence, t: int, frame: Frame, deviation: Tensor, moved: Tensor) -> list[float]:
    zero = torch.zeros_like(deviation)
    bias, raw = (_energy(deviation_map(recurrence, t, zero, frame, masked)) for masked in (True, False))
    update = _energy(moved)
    floor = max(update, RATIO_FLOOR)
    return [bias / floor, raw / floor, bias, update, _energy(deviation)]


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
        v = torch.randn(at.shape, generator=generator, dtype=torch.float64)
        v /= _norms(v)[:, None, None]
        moved = deviation_map(wide.recurrence, t, at + FINITE_DIFFERENCE * v, frame)
        gains.append(_norms(moved - base) / FINITE_DIFFERENCE)
    return float(torch.stack(gains).mean())


def _norms(x: Tensor) -> Tensor:
    """The Frobenius norm of each example [B]."""
    return x.pow(2).sum(dim=(1, 2)).sqrt()


def _energy(x: Tensor) -> float:
    """N⁻¹‖x‖_F² in float64."""
    return float(x.double().pow(2).mean())


def _check_finite(moved: Tensor, t: int) -> None:
    if not bool(torch.isfinite(moved).all()):
        raise RunFailure(f"the state is no longer finite after step {t}; diagnose fewer steps with --steps {max(t, 1)}")
