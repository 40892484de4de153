"""What a diagnosis says about stability: does the map contract where the state is, and when does the state leave what
training has seen?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scse.diagnostics.pointwise import StepDiagnosis
from scse.recurrence import Recurrence

MARGIN = 0.01
ROUNDING = 1e-10


@dataclass(frozen=True)
class Verdict:
    """`stability` at the deepest step where the expansion was measured; `leaves_at` is a number of loops or None.

    The state has left the trained range at the first t with E_{Δ,t} > max E over all windows and depths 0 … `trained`.
    """

    step: int
    stability: str
    expansion: float
    gain: float
    residual: float
    leaves_at: int | None
    trained: int
    seen: int

    def __str__(self) -> str:
        local = (
            f"{self.stability} at step {self.step}: the worst direction grows {self.expansion:.4g} × "
            f"(residual {self.residual:.1g}), a random one {self.gain:.5g} ×"
        )
        if self.leaves_at is not None:
            return (
                f"{local}; the state leaves the range of the trained depths 0 … {self.trained} at T = {self.leaves_at}"
            )
        if self.seen <= self.trained:
            return f"{local}; only trained depths were diagnosed"
        return f"{local}; the state stays in the range of the trained depths 0 … {self.trained} up to T = {self.seen}"


def stability(expansion: float) -> str:
    """σ < 0.99 contracts in every direction, σ > 1.01 expands in at least one, otherwise neutral."""
    if expansion < 1 - MARGIN:
        return "contracts"
    return "expands" if expansion > 1 + MARGIN else "neutral"


def trained_energy(rows: Sequence[StepDiagnosis], trained: int) -> float:
    """The largest mean-square deviation that any window had within the trained depths; nothing is beyond it where
    there are no deviations."""
    known = [row.largest_anchor_energy for row in rows if row.step <= trained]
    return max((energy for energy in known if energy is not None), default=math.inf)


def _beyond(row: StepDiagnosis, limit: float) -> bool | None:
    return None if row.anchor_energy is None else row.anchor_energy > limit


def judge(rows: Sequence[StepDiagnosis], trained: int) -> Verdict:
    """The verdict of a diagnosis; the expansion must have been measured at some step."""
    limit = trained_energy(rows, trained)
    deepest = [row for row in rows if row.expansion is not None][-1]
    assert deepest.expansion is not None
    assert deepest.expansion_residual is not None
    assert deepest.gain is not None
    return Verdict(
        step=deepest.step,
        stability=stability(deepest.expansion),
        expansion=deepest.expansion,
        gain=deepest.gain,
        residual=deepest.expansion_residual,
        leaves_at=next((row.step for row in rows if _beyond(row, limit)), None),
        trained=trained,
        seen=rows[-1].step,
    )


def broken_claims(recurrence: Recurrence, rows: Sequence[StepDiagnosis]) -> list[str]:
    """Sentences about steps at which the anchor moves although the recurrence claims T_t(0; e) = 0.

    Two calls of a block that should cancel may differ in the last bit, so rounding is not held against a family.
    """
    claims = (
        ("before the mask", recurrence.zero_preserving, [row.raw_bias_ratio or 0.0 for row in rows]),
        ("as it is used", recurrence.anchor_preserving, [row.bias_ratio or 0.0 for row in rows]),
    )
    return [
        f"this family claims a fixed anchor ({form}), but its map moves there: R = {max(ratios):.3g} "
        f"at step {ratios.index(max(ratios))}"
        for form, claimed, ratios in claims
        if claimed and max(ratios) > ROUNDING
    ]


def with_verdicts(found: Sequence[StepDiagnosis], trained: int) -> list[dict[str, Any]]:
    """The rows of a diagnosis with two judgements each: 'stability' where measured, 'beyond_trained_range'."""
    limit = trained_energy(found, trained)
    return [
        {
            **asdict(row),
            "stability": None if row.expansion is None else stability(row.expansion),
            "beyond_trained_range": _beyond(row, limit),
        }
        for row in found
    ]
