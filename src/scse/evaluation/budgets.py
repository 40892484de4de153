"""Mean loop budgets from calibration to result: thresholds from validation, quality and time on another split."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scse.evaluation.adaptive import AdaptiveResult, calibrate, offline, online, trace
from scse.evaluation.perplexity import perplexity_over_depths
from scse.evaluation.rules import exit_rule
from scse.model import LoopedLM
from scse.progress import progress


@dataclass(frozen=True)
class BudgetRow:
    """One budget in one mode, beside the fixed depth of the same budget. `seconds` of 'offline' is the full trace."""

    budget: int
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
    """How depth is adapted: the rule, the mean budgets asked for, the most loops allowed."""

    rule: str = "update"
    budgets: tuple[int, ...] = (8, 16, 24)
    ceiling: int = 48
    batch: int = 32
    limit: int | None = None


def evaluate_budgets(
    model: LoopedLM,
    validation: np.ndarray,
    tokens: np.ndarray,
    settings: AdaptiveSettings,
    modes: Sequence[str] = ("offline", "online"),
    show: bool = False,
) -> list[BudgetRow]:
    """Calibrate every budget on `validation`, then evaluate on `tokens` in each mode and at the fixed depth."""
    rule, ceiling = exit_rule(settings.rule), settings.ceiling
    batch, limit = settings.batch, settings.limit
    with progress("calibrating", _size(model, validation, settings), "tok", enabled=show) as meter:
        statistics = trace(model, validation, rule, ceiling, batch, limit, meter)
    thresholds = [calibrate(statistics, budget) for budget in settings.budgets]
    results: dict[tuple[int, str], AdaptiveResult] = {}
    size = _size(model, tokens, settings)
    if "offline" in modes:
        with progress("offline", size, "tok", enabled=show) as meter:
            found = offline(model, tokens, rule, thresholds, ceiling, batch, limit, meter)
        results |= {(budget, "offline"): r for budget, r in zip(settings.budgets, found, strict=True)}
    if "online" in modes:
        with progress("online", size * len(thresholds), "tok", enabled=show) as meter:
            for budget, threshold in zip(settings.budgets, thresholds, strict=True):
                results[budget, "online"] = online(model, tokens, rule, threshold, ceiling, batch, limit, meter)
    rows = []
    for budget, threshold in zip(settings.budgets, thresholds, strict=True):
        begin = time.perf_counter()
        (static,) = perplexity_over_depths(model, tokens, [budget], batch, limit, show)
        seconds = time.perf_counter() - begin
        for mode in modes:
            r = results[budget, mode]
            rows.append(
                BudgetRow(
                    budget, mode, threshold, r.mean_depth, r.ppl, r.seconds, static.ppl, seconds, r.histogram(ceiling)
                )
            )
    return rows


def _size(model: LoopedLM, tokens: np.ndarray, settings: AdaptiveSettings) -> int:
    every = len(tokens) - 1
    return every if settings.limit is None else min(every, settings.limit * model.config.shape.context)
