"""Adaptive depth from calibration to result: thresholds from validation, quality and time on another split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from scse.config.adaptive import MODES, SPREAD_MODES, AdaptiveSettings
from scse.data import UNCOUNTED, Readable, Sequences
from scse.errors import UserError, checked_choice
from scse.evaluation.adaptive import AdaptiveResult, offline, online
from scse.evaluation.calibration import (
    Trace,
    UnreachableBudget,
    calibrate,
    calibrate_quality,
    exit_depths,
    trace,
)
from scse.evaluation.perplexity import target_count, timed_perplexity
from scse.evaluation.rules import RULES, MeanRule, Stopping
from scse.evaluation.tokenwise import calibrate_tokens, tokenwise
from scse.model import LoopedLM
from scse.progress import progress
from scse.runs.partial import Partial

Place = tuple[float, str]


@dataclass(frozen=True)
class BudgetRow:
    """One budget in one mode, beside the fixed depth nearest to the mean depth that was realised.

    `seconds` of 'offline' is the full trace; as the fixed depth's, they are added up over batches and processes.
    `by_difficulty` is of a problem: the mean loops taken by examples whose hardest answer is so hard, or, where tokens
    stop by themselves, by answers.
    """

    budget: float
    mode: str
    threshold: float
    mean_depth: float
    ppl: float
    seconds: float
    static_depth: int
    static_ppl: float
    static_seconds: float
    histogram: list[int]
    by_difficulty: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Thresholds:
    """By (budget, mode): the thresholds, and for those that no threshold reaches the reason."""

    found: Mapping[Place, float]
    unreachable: Mapping[Place, str]


class AdaptiveEvaluation:
    """One model, calibrated on `validation` and evaluated on `tokens`.

    Several processes divide the calibration, what is spread, and the fixed depths beside it. The leader does the rest
    after that, when nobody waits for it any more.
    """

    def __init__(
        self, model: LoopedLM, settings: AdaptiveSettings, show: bool = False, partial: Partial | None = None
    ) -> None:
        for mode in settings.modes:
            checked_choice("mode", mode, MODES)
        if partial is not None and not partial.here.leads:
            settings = replace(settings, modes=tuple(mode for mode in settings.modes if mode in SPREAD_MODES))
        self.model, self.settings, self.show = model, settings, show
        self.partial, self.parts = partial, list[Partial]()
        self.stopping = Stopping(RULES.find(settings.rule), settings.ceiling, settings.batch, settings.limit)
        self.calibration = replace(self.stopping, windows=settings.calibration)

    def run(self, validation: Readable, tokens: Readable) -> tuple[list[BudgetRow], Mapping[Place, str]]:
        """The rows of all budgets that can be reached, and why the others cannot; an error where none can."""
        thresholds = self.calibrate(validation)
        if not thresholds.found and thresholds.unreachable:
            self._forget()
            raise UserError("; ".join(dict.fromkeys(thresholds.unreachable.values())))
        results: dict[Place, AdaptiveResult] = {}
        static: dict[int, tuple[float, float]] = {}
        for spread in (True, False):
            chosen = {place: cut for place, cut in thresholds.found.items() if (place[1] in SPREAD_MODES) == spread}
            found_now = self.evaluate(tokens, chosen)
            for depth in sorted({_nearest(found) for found in found_now.values()} - static.keys()):
                static[depth] = self._static(tokens, depth, spread)
            results |= found_now
        self._forget()
        rows = []
        for (budget, mode), threshold in thresholds.found.items():
            found = results[budget, mode]
            depth = _nearest(found)
            about = (threshold, found.mean_depth, found.ppl, found.seconds, depth, *static[depth])
            loops = loops_by_difficulty(tokens, found.depths, by_token=mode == "token")
            rows.append(BudgetRow(budget, mode, *about, found.histogram(self.settings.ceiling), loops))
        return rows, thresholds.unreachable

    def calibrate(self, validation: Readable) -> Thresholds:
        """A quality target's budget is the mean depth it takes on validation."""
        settings = self.settings
        wanted = settings.quality is not None
        size = self._size(validation, settings.calibration)
        with progress("calibrating", size, "tok", enabled=self.show) as meter:
            seen = trace(self.model, validation, self.calibration, meter, wanted, self._part("calibrating"))
        if settings.quality is not None:
            threshold = calibrate_quality(seen, settings.quality)
            budget = float(exit_depths(seen.statistics, threshold).mean())
            return Thresholds({(budget, mode): threshold for mode in settings.modes}, {})
        found: dict[Place, float] = {}
        unreachable: dict[Place, str] = {}
        for budget in settings.budgets:
            for mode in settings.modes:
                try:
                    found[budget, mode] = self._threshold(validation, seen, budget, mode)
                except UnreachableBudget as error:
                    unreachable[budget, mode] = str(error)
        return Thresholds(found, unreachable)

    def _threshold(self, validation: Readable, seen: Trace, budget: float, mode: str) -> float:
        if mode != "token":
            return calibrate(seen.statistics, budget)
        largest = float(seen.statistics.max())
        if isinstance(self.stopping.rule, MeanRule):  # whose statistic of one token may be above all means over tokens
            largest = max(largest, 1.0)
        return calibrate_tokens(self.model, validation, self.calibration, budget, largest)

    def evaluate(self, tokens: Readable, thresholds: Mapping[Place, float]) -> dict[Place, AdaptiveResult]:
        size = self._size(tokens, self.settings.limit)
        results: dict[Place, AdaptiveResult] = {}
        for mode, evaluate in (("online", online), ("token", tokenwise)):
            chosen = {place: cut for place, cut in thresholds.items() if place[1] == mode}
            if not chosen:
                continue
            with progress(mode, size * len(chosen), "tok", enabled=self.show) as meter:
                for place, cut in chosen.items():
                    results[place] = evaluate(self.model, tokens, self.stopping, cut, meter)
        chosen = {place: cut for place, cut in thresholds.items() if place[1] == "offline"}
        if chosen:
            with progress("offline", size, "tok", enabled=self.show) as meter:
                cuts = list(chosen.values())
                found = offline(self.model, tokens, self.stopping, cuts, meter, self._part("offline", thresholds=cuts))
            results |= dict(zip(chosen, found, strict=True))
        return results

    def _static(self, tokens: Readable, depth: int, spread: bool) -> tuple[float, float]:
        """Perplexity and seconds of everything at one depth."""
        settings, partial = self.settings, self._part("static", depth=depth) if spread else None
        (found,), seconds = timed_perplexity(
            self.model, tokens, [depth], settings.batch, settings.limit, self.show, partial
        )
        return found.ppl, seconds

    def _part(self, name: str, **about: Any) -> Partial | None:
        """Where a pass may have stopped before."""
        if self.partial is None:
            return None
        self.parts.append(self.partial.part(name, **self.stopping.rule.describe(self.model), **about))
        return self.parts[-1]

    def _forget(self) -> None:
        for part in self.parts:
            part.forget()

    def _size(self, tokens: Readable, limit: int | None) -> int:
        return target_count(tokens, self.model.config.shape.context, limit)


def loops_by_difficulty(data: Readable, depths: np.ndarray, by_token: bool) -> dict[int, float]:
    """The mean of the loops that examples [N] or tokens [N·L] took, by difficulty; nothing for text."""
    if not isinstance(data, Sequences):
        return {}
    asked, difficulty = data.targets != UNCOUNTED, data.difficulty
    if not by_token:
        chosen, depths = difficulty[: len(depths)].max(axis=1), depths
    else:
        rows = len(depths) // data.ids.shape[1]
        chosen, depths = difficulty[:rows][asked[:rows]], depths[asked[:rows].ravel()]
    return {int(level): float(depths[chosen == level].mean()) for level in np.unique(chosen)}


def _nearest(found: AdaptiveResult) -> int:
    """The fixed depth that costs as much."""
    return max(1, round(found.mean_depth))
