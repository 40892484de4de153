"""Adaptive depth from calibration to result: thresholds from validation, quality and time on another split."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from scse.errors import checked_choice
from scse.evaluation.adaptive import AdaptiveResult, offline, online
from scse.evaluation.calibration import calibrate, calibrate_quality, exit_depths, trace
from scse.evaluation.perplexity import perplexity_over_depths
from scse.evaluation.rules import exit_rule
from scse.evaluation.tokenwise import calibrate_tokens, tokenwise
from scse.measure import elapsed
from scse.model import LoopedLM
from scse.progress import progress

EXAMPLE_MODES = ("offline", "online")
MODES = (*EXAMPLE_MODES, "token")


@dataclass(frozen=True)
class BudgetRow:
    """One budget in one mode, beside the fixed depth of the same budget. `seconds` of 'offline' is the full trace."""

    budget: float
    mode: str
    threshold: float
    mean_depth: float
    ppl: float
    seconds: float
    static_ppl: float
    static_seconds: float
    histogram: list[int]


@dataclass(frozen=True)
class AdaptiveSettings:
    """How depth is adapted: the rule, the mean budgets asked for (or a quality target in percent), the most loops."""

    rule: str = "update"
    budgets: tuple[float, ...] = (8, 16, 24)
    quality: float | None = None
    ceiling: int = 48
    batch: int = 32
    limit: int | None = None
    modes: tuple[str, ...] = EXAMPLE_MODES


class AdaptiveEvaluation:
    """One model, calibrated on `validation` and evaluated on `tokens`."""

    def __init__(self, model: LoopedLM, settings: AdaptiveSettings, show: bool = False) -> None:
        for mode in settings.modes:
            checked_choice("mode", mode, MODES)
        self.model, self.settings, self.show = model, settings, show
        self.rule = exit_rule(settings.rule)

    def run(self, validation: np.ndarray, tokens: np.ndarray) -> list[BudgetRow]:
        settings = self.settings
        targets = self.calibrate(validation)
        results = self.evaluate(tokens, targets)
        rows = []
        for budget in targets:
            begin = time.perf_counter()
            depth = max(1, round(budget))
            (static,) = perplexity_over_depths(
                self.model, tokens, [depth], settings.batch, settings.limit, show=self.show
            )
            seconds = elapsed(begin)
            for mode in settings.modes:
                threshold, found = results[budget, mode]
                histogram = found.histogram(settings.ceiling)
                about = (threshold, found.mean_depth, found.ppl, found.seconds, static.ppl, seconds, histogram)
                rows.append(BudgetRow(budget, mode, *about))
        return rows

    def calibrate(self, validation: np.ndarray) -> dict[float, dict[str, float]]:
        """{budget: {mode: threshold}}. A quality target's budget is the mean depth it takes on validation."""
        settings = self.settings
        wanted = settings.quality is not None
        with progress("calibrating", self._size(validation), "tok", enabled=self.show) as meter:
            found = trace(self.model, validation, self.rule, *self._how(), meter, with_nll=wanted)
        if settings.quality is not None:
            threshold = calibrate_quality(found, settings.quality)
            budget = float(exit_depths(found.statistics, threshold).mean())
            return {budget: dict.fromkeys(settings.modes, threshold)}
        targets: dict[float, dict[str, float]] = {}
        for budget in settings.budgets:
            targets[budget] = dict.fromkeys(EXAMPLE_MODES, calibrate(found.statistics, budget))
            if "token" in settings.modes:
                largest = float(found.statistics.max())
                targets[budget]["token"] = calibrate_tokens(
                    self.model, validation, self.rule, budget, *self._how(), largest
                )
        return targets

    def evaluate(
        self, tokens: np.ndarray, targets: dict[float, dict[str, float]]
    ) -> dict[tuple[float, str], tuple[float, AdaptiveResult]]:
        results: dict[tuple[float, str], tuple[float, AdaptiveResult]] = {}
        for mode, evaluate in (("online", online), ("token", tokenwise)):
            if mode not in self.settings.modes:
                continue
            with progress(mode, self._size(tokens) * len(targets), "tok", enabled=self.show) as meter:
                for budget, thresholds in targets.items():
                    cut = thresholds[mode]
                    results[budget, mode] = cut, evaluate(self.model, tokens, self.rule, cut, *self._how(), meter)
        if "offline" in self.settings.modes:
            cuts = [thresholds["offline"] for thresholds in targets.values()]
            with progress("offline", self._size(tokens), "tok", enabled=self.show) as meter:
                found = offline(self.model, tokens, self.rule, cuts, *self._how(), meter)
            results |= {(b, "offline"): (c, r) for b, c, r in zip(targets, cuts, found, strict=True)}
        return results

    def _how(self) -> tuple[int, int, int | None]:
        return self.settings.ceiling, self.settings.batch, self.settings.limit

    def _size(self, tokens: np.ndarray) -> int:
        every, limit = len(tokens) - 1, self.settings.limit
        return every if limit is None else min(every, limit * self.model.config.shape.context)
