"""What a model costs: time and memory of each depth, its size, and quality against cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from scse.tasks.adaptive import in_suites
from scse.tasks.base import (
    Column,
    Evaluated,
    Selection,
    Task,
    Where,
    by_depth,
    depths_of,
    distinct,
    infers,
    random_tokens,
    record_of,
    title_of,
    without,
)

if TYPE_CHECKING:
    from scse.config.adaptive import AdaptiveSettings
    from scse.config.model import Shape
    from scse.evaluation.pareto import ParetoPoint
    from scse.runs import Run

REPEATS = 7


class Profile(Task):
    """Latency, throughput and memory at each depth, on random tokens."""

    name = "profile"
    counts_loops = True

    def asked(self, where: Where, column: Column) -> dict[str, Any]:
        return Where(where.random, "").asks(self.name, column.depth)

    def evaluate(self, run: Run, selection: Selection, columns: Sequence[Column]) -> Evaluated:
        return self.at(run, depths_of(columns), selection.sequences, show=selection.show)

    @infers
    def at(
        self,
        run: Run,
        depths: Sequence[int],
        batch: int,
        length: int | None = None,
        repeats: int = REPEATS,
        tag: str = "",
        show: bool = True,
    ) -> Evaluated:
        from scse.evaluation.profile import profile

        length = length or run.config.model.shape.context
        results = profile(run.model, distinct(depths), batch, length, repeats, show)
        where = Where(random_tokens(batch, length), "", tag=tag)
        found = by_depth(run, where, self.name, results, "")
        return replace(found, title=f"{run.folder}: {batch} sequences of {length} tokens")

    def tokens(self, limit: int | None, shape: Shape, sequences: int) -> float:
        return sequences * shape.context * (REPEATS + 2)


class Size(Task):
    """How many numbers are trained, which is what the weights take to store."""

    name = "size"

    def asked(self, where: Where, column: Column) -> dict[str, Any]:
        return Where("", "").asks(self.name)

    def evaluate(self, run: Run, selection: Selection, columns: Sequence[Column]) -> Evaluated:
        from scse.model import trainable_parameters

        numbers = {"parameters": trainable_parameters(run.model)}
        record = record_of(run, Where("", "").asks(self.name), numbers, "")
        return Evaluated([numbers], [record], str(run.folder))

    def tokens(self, limit: int | None, shape: Shape, sequences: int) -> float:
        return 0


class Pareto(Task):
    """Perplexity against FLOPs, time and cache memory, at fixed depths and under real early exit."""

    name = "pareto"

    def asked(self, where: Where, column: Column) -> dict[str, Any]:
        if column.budget is None:
            return where.asks(self.name, column.depth)
        return where.asks(self.name, adaptive=in_suites((), where.limit).identity(column.budget, "online"))

    def evaluate(self, run: Run, selection: Selection, columns: Sequence[Column]) -> Evaluated:
        budgets = dict.fromkeys(column.budget for column in columns if column.budget is not None)
        settings = in_suites(list(budgets), selection.limit)
        return self.at(run, selection, depths_of(columns), settings)[0]

    @infers
    def at(
        self, run: Run, selection: Selection, depths: Sequence[int], settings: AdaptiveSettings
    ) -> tuple[Evaluated, list[ParetoPoint], dict[float, str]]:
        """The evaluation, its points, and the budgets that cannot be reached with the reason."""
        from scse.evaluation.pareto import ParetoEvaluation
        from scse.evaluation.rules import RULES

        corpus, split = selection.open(run)
        evaluation = ParetoEvaluation(str(run.folder), run.model, selection.batch, selection.limit, show=selection.show)
        points = evaluation.fixed(split.tokens, depths)
        missed: dict[float, str] = {}
        if settings.budgets and evaluation.adapts:
            more, missed = evaluation.adaptive(corpus.split("validation").tokens, split.tokens, settings)
            points += more
        where = Where.of(corpus, split, selection)
        limited, rule = replace(settings, limit=selection.limit), RULES.find(settings.rule)
        rows, records = [], []
        for point in points:
            fixed = point.budget is None
            how = None if fixed else limited.identity(point.budget, "online") | rule.describe(run.model)
            asked = where.asks(self.name, int(point.depth) if fixed else None, adaptive=how)
            rows.append(asdict(point))
            records.append(record_of(run, asked, without(rows[-1], "run", "family", "kind", "budget"), split.digest))
        found = Evaluated(rows, records, title_of(run, where), faults=list(missed.values()))
        return found, points, missed
