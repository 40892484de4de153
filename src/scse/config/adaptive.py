"""How depth is adapted. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from scse.config.use import BATCH, CEILING, RULE
from scse.errors import UserError

EXAMPLE_MODES = ("offline", "online")
MODES = (*EXAMPLE_MODES, "token")
SPREAD_MODES = ("offline",)  # whose batches several processes can divide; the others measure one process's time


@dataclass(frozen=True)
class AdaptiveSettings:
    """How depth is adapted: the rule, the mean budgets asked for (or a quality target in percent), the most loops.

    `limit` counts the windows that are evaluated, from the first on; `calibration` those of validation that thresholds
    are chosen on, spread over the split. None is all of them.
    """

    rule: str = RULE
    budgets: tuple[float, ...] = (8, 16, 24)
    quality: float | None = None
    ceiling: int = CEILING
    batch: int = BATCH
    limit: int | None = None
    calibration: int | None = None
    modes: tuple[str, ...] = EXAMPLE_MODES

    def __post_init__(self) -> None:
        if self.quality is not None and not 0 <= self.quality < math.inf:
            raise UserError(f"a quality target must not be negative, and a number, got {self.quality:g} %")
        if self.quality is None and max(self.budgets, default=0) > self.ceiling:
            raise UserError(f"a budget of {max(self.budgets):g} is above the ceiling of {self.ceiling} loops; raise it")

    def identity(self, budget: float | None, mode: str) -> dict[str, Any]:
        """What a record states about them.

        Without 'calibration' it is as much of validation as was evaluated, from the first window on: the whole split,
        or in old records the few windows of their limit.
        """
        about: dict[str, Any] = {"rule": self.rule, "ceiling": self.ceiling, "calibrated_on": "validation"}
        if self.limit is not None or self.calibration is not None:
            about["calibration"] = self.calibration
        if self.quality is not None:
            about["quality"] = self.quality
        return about | {"budget": budget if self.quality is None else None, "mode": mode}
