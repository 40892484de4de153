"""Rollouts that start at the anchor, Δ_0 = 0, and how the source steers them.

All vectors are sequence means: s_t = L⁻¹ Σ_l Δ_t[l], one vector of width d per input. "Drift" is s_T of the trained
model, "push" its norm. Shapes: N inputs, T steps, L positions, d width, G gains.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scse.config.use import INJECTION_GAINS
from scse.data import Readable
from scse.diagnostics.differentials import check_finite
from scse.evaluation.perplexity import whole_windows
from scse.model import LoopedLM, unroll
from scse.progress import SILENT, Meter
from scse.recurrence import Recurrence, deviation_map
from scse.recurrence.base import anchor_of
from scse.recurrence.drives import Injection

SMALLEST = 1e-30


@dataclass(frozen=True)
class Steering:
    """Sequence-mean trajectories [G, N, T + 1, d] of anchor-started rollouts at multiples `gains` of the trained gain.

    `forcing` [N, d] is the sequence mean of b_0 = T_0(0; e), the direction of the ray t·b(e). `has_source` is False for
    a recurrence in which there is no injection to turn.
    """

    gains: tuple[float, ...]
    paths: np.ndarray
    forcing: np.ndarray
    has_source: bool
    trained_depth: int

    @property
    def trained(self) -> np.ndarray:
        """s_t at the trained gain [N, T + 1, d]"""
        found: np.ndarray = self.paths[self.gains.index(1.0)]
        return found

    @property
    def moves(self) -> bool:
        return bool(self.trained.any())

    def displacements(self, gain: float) -> np.ndarray:
        """D_g = s^(g) − s^(0) [N, T + 1, d]: what the injection adds to the rollout without it."""
        found: np.ndarray = self.paths[self.gains.index(gain)] - self.paths[self.gains.index(0.0)]
        return found

    @property
    def ray_cosines(self) -> np.ndarray:
        """cos(s_t, b) for t = 1 … T [N, T]"""
        return _cosine(self.trained[:, 1:], self.forcing[:, None])

    @property
    def anchor_distances(self) -> np.ndarray:
        """‖s_t‖ [N, T + 1]"""
        return _norm(self.trained)


@torch.no_grad()
def steer(
    model: LoopedLM, tokens: Readable, inputs: int, steps: int, trained_depth: int, meter: Meter = SILENT
) -> Steering:
    """Roll the first `inputs` windows out from their anchors, once per gain, in float64."""
    wide = copy.deepcopy(model).double()
    found, _ = next(whole_windows(tokens, model.config.shape.context, inputs))
    (ids,) = model.place(found)
    e = wide.embed(ids)
    frame = wide.recurrence.begin(e)
    zero = torch.zeros_like(anchor_of(frame.anchor))
    paths = [_rollout(with_source_gain(wide.recurrence, gain), e, steps, meter) for gain in INJECTION_GAINS]
    return Steering(
        gains=INJECTION_GAINS,
        paths=np.stack(paths),
        forcing=_sequence_mean(deviation_map(wide.recurrence, 0, zero, frame)),
        has_source=bool(sources(wide.recurrence)),
        trained_depth=min(trained_depth, steps),
    )


def sources(recurrence: Recurrence) -> list[Injection]:
    """The units that bring the input back in at every step, wherever they are nested."""
    return [unit for unit in recurrence.modules() if isinstance(unit, Injection)]


def with_source_gain(recurrence: Recurrence, factor: float) -> Recurrence:
    """A copy of the recurrence whose injection gains are multiplied; nothing else differs."""
    changed = copy.deepcopy(recurrence)
    for injection in sources(changed):
        injection.gain.mul_(factor)
    return changed


def _rollout(recurrence: Recurrence, e: Tensor, steps: int, meter: Meter) -> np.ndarray:
    frame = recurrence.begin(e)
    path = []
    for state in islice(unroll(recurrence, frame, start=anchor_of(frame.anchor)), steps + 1):
        check_finite(state.z, max(state.t - 1, 0), "--steps")
        path.append(_sequence_mean(state.deviation))
        meter.advance(1)
    return np.stack(path, axis=1)


def per_input(found: Steering) -> list[dict[str, float | int | None]]:
    """The numbers under the figure, one row per input; None where a direction does not exist.

    `share` is ‖D_1‖ / ‖s‖ at T, `angle` the angle of D_1 to the drift in degrees, `half` and `double` the norms of D_½
    and D_2 relative to D_1, `collinear` the smaller cosine of the two with D_1, `growing` the share of steps at which
    ‖D_1‖ grows.
    """
    cosines, distances = found.ray_cosines, found.anchor_distances
    half, full, double = (found.displacements(gain) for gain in (0.5, 1.0, 2.0))
    size = _norm(full)
    aligned = np.minimum(_cosine(half[:, -1], full[:, -1]), _cosine(double[:, -1], full[:, -1]))
    drift = _cosine(full[:, -1], found.trained[:, -1])
    columns = {
        "forcing": _norm(found.forcing),
        "push_trained": distances[:, found.trained_depth],
        "push": distances[:, -1],
        "cosine_lowest": cosines.min(axis=1),
        "cosine_last": cosines[:, -1],
        "share": _ratio(size[:, -1], distances[:, -1]),
        "angle": np.degrees(np.arccos(np.clip(drift, -1, 1))),
        "half": _ratio(_norm(half)[:, -1], size[:, -1]),
        "double": _ratio(_norm(double)[:, -1], size[:, -1]),
        "collinear": aligned,
        "growing": np.where(size[:, -1] > 0, (np.diff(size, axis=1) > 0).mean(axis=1), np.nan),
    }
    return [
        {"input": number, **{name: _known(values[number]) for name, values in columns.items()}}
        for number in range(len(found.forcing))
    ]


def summary(found: Steering) -> dict[str, float]:
    """Over inputs: the range of cosines over all steps, the range and root mean square of the shares, mean angle."""
    numbers = {"push": float(found.anchor_distances[:, -1].mean())}
    numbers["circle"] = float(found.anchor_distances[:, found.trained_depth].mean())
    rows = per_input(found)
    if found.moves:
        numbers |= {
            "cosine_lowest": float(np.nanmin(found.ray_cosines)),
            "cosine_highest": float(np.nanmax(found.ray_cosines)),
        }
    for name in ("share", "angle", "half", "double", "collinear", "growing"):
        values = [value for row in rows if (value := row[name]) is not None]
        if found.has_source and found.moves and values:
            numbers[f"{name}_mean"] = float(np.mean(values))
            numbers[f"{name}_lowest"], numbers[f"{name}_highest"] = float(min(values)), float(max(values))
    if "share_mean" in numbers:
        numbers["share_rms"] = float(np.sqrt(np.mean([float(row["share"] or 0) ** 2 for row in rows])))
    return numbers


def sentence(found: Steering) -> str:
    """The summary in one line; what does not exist is not mentioned."""
    numbers = summary(found)
    if "cosine_lowest" not in numbers:
        return "nothing moves: the anchor is a fixed point"
    text = f"cosines to the forcing ray {numbers['cosine_lowest']:.2f} … {numbers['cosine_highest']:.2f}"
    if "share_rms" not in numbers:
        return text
    shares = f"{numbers['share_lowest']:.0%} … {numbers['share_highest']:.0%}"
    return (
        f"{text}; the injection's displacement is {shares} of the anchor push "
        f"(root mean square {numbers['share_rms']:.0%}), {numbers['angle_mean']:.0f}° from the drift on average"
    )


def panels(found: Steering) -> dict[str, Any]:
    """What the two-panel figure shows, as plain numbers in the planes of its panels (report/anchor_start.py)."""
    displacements = {gain: found.displacements(gain) for gain in found.gains if gain}
    drift, dose = plane(found.trained), plane(np.stack(list(displacements.values())))
    paths = found.trained @ drift.T
    return {
        "has_source": found.has_source,
        "drift": {
            "paths": _short(paths),
            "rays": _short(found.forcing @ drift.T),
            "radius": float(_norm(paths[:, found.trained_depth]).mean()),
            "trained": found.trained_depth,
        },
        "dose": {
            "gains": list(displacements),
            "paths": [_short(path @ dose.T) for path in displacements.values()],
        },
    }


def _short(numbers: np.ndarray) -> Any:
    """Five digits, enough for a picture and small enough for a record."""
    return [_short(part) for part in numbers] if numbers.ndim > 1 else [float(f"{x:.5g}") for x in numbers]


def plane(points: np.ndarray) -> np.ndarray:
    """The two directions [2, d] that hold most of the energy of points [..., d] around the anchor, which is 0.

    Not centred: the anchor stays at the origin of the picture, and rays from it stay rays.
    """
    _, _, directions = np.linalg.svd(points.reshape(-1, points.shape[-1]), full_matrices=False)
    axes: np.ndarray = directions[:2]
    # A singular vector is known up to its sign only; the same numbers must give the same picture.
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1, keepdims=True), axis=1)
    signed: np.ndarray = axes * np.where(largest < 0, -1.0, 1.0)
    return signed


def _sequence_mean(x: Tensor) -> np.ndarray:
    mean: np.ndarray = x.mean(dim=1).cpu().numpy()
    return mean


def _norm(x: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.linalg.norm(x, axis=-1)
    return found


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """above / below, not a number where there is nothing to divide by."""
    nothing = np.full(np.broadcast(above, below).shape, np.nan)
    found: np.ndarray = np.divide(above, below, out=nothing, where=below > SMALLEST)
    return found


def _cosine(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _ratio((x * y).sum(axis=-1), _norm(x) * _norm(y))


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
