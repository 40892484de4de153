"""Depth that adapts: thresholds calibrated on validation, quality and loops on another split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from scse.config.use import CEILING
from scse.tasks.base import WHOLE_SPLIT, Column, Evaluated, Selection, Task, Where, infers, record_of, title_of, without

if TYPE_CHECKING:
    from scse.config.adaptive import AdaptiveSettings
    from scse.config.model import Shape
    from scse.runs import Run

# The fewest windows of validation that thresholds are chosen on; docs/evaluation.md says why so many.
CALIBRATION_WINDOWS = 256


def calibration_windows(limit: int | None) -> int | None:
    """How much of validation thresholds are chosen on: all of it or, where an evaluation is limited, enough of it.

    Never less than is evaluated: calibration then adds no more chance to a realised depth than the evaluation itself.
    """
    return None if limit is None else max(limit, CALIBRATION_WINDOWS)


def in_suites(budgets: Sequence[float], limit: int | None) -> AdaptiveSettings:
    """How every suite adapts depth: the paper's rule and accounting."""
    from scse.config.adaptive import AdaptiveSettings

    return AdaptiveSettings(
        budgets=tuple(budgets), ceiling=CEILING, limit=limit, calibration=calibration_windows(limit), modes=("offline",)
    )


class Adaptive(Task):
    """Perplexity and realised mean depth at a mean loop budget."""

    name = "adaptive"
    spreads = True

    def asked(self, where: Where, column: Column) -> dict[str, Any]:
        settings = in_suites((), where.limit)
        return where.asks("perplexity", adaptive=settings.identity(column.budget, "offline"))

    def evaluate(self, run: Run, selection: Selection, columns: Sequence[Column]) -> Evaluated:
        budgets = dict.fromkeys(column.budget for column in columns if column.budget is not None)
        return self.at(run, selection, in_suites(list(budgets), selection.limit))

    @infers
    def at(self, run: Run, selection: Selection, settings: AdaptiveSettings) -> Evaluated:
        from scse.evaluation.budgets import AdaptiveEvaluation

        settings = replace(settings, batch=selection.batch, limit=selection.limit)
        corpus, split = selection.open(run)
        validation = corpus.split("validation")
        asked = {"task": self.name, "text": split.digest, "calibration": validation.digest, **asdict(settings)}
        evaluation = AdaptiveEvaluation(run.model, settings, selection.show, run.partial(asked))
        results, unreachable = evaluation.run(validation.tokens, split.tokens)
        where = Where.of(corpus, split, selection)
        rows, records = [], []
        for result in results:
            row = asdict(result)
            histogram, by_difficulty = row.pop("histogram"), row.pop("by_difficulty")
            loops = {"by_difficulty": {str(level): mean for level, mean in by_difficulty.items()}}
            about = loops if by_difficulty else {}  # text has no difficulty
            rows.append(row | about)
            how = settings.identity(result.budget, result.mode) | evaluation.stopping.rule.describe(run.model)
            asked = where.asks("perplexity", adaptive=how)
            numbers = without(row, "budget", "mode")
            records.append(record_of(run, asked, numbers, split.digest, histogram=histogram, **about))
        faults = [f"adaptive on {corpus.name}: {reason}" for reason in dict.fromkeys(unreachable.values())]
        return Evaluated(rows, records, f"{title_of(run, where)}, rule '{settings.rule}'", faults=faults)

    def tokens(self, limit: int | None, shape: Shape, sequences: int) -> float:
        counts = (limit, calibration_windows(limit))
        return sum(WHOLE_SPLIT if count is None else count * shape.context for count in counts)
