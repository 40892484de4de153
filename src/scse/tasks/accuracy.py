"""Accuracy of a problem's answers by difficulty and depth, all depths from one unroll."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from scse.data.problem import HELD_OUT
from scse.errors import UserError
from scse.tasks.base import (
    Column,
    Evaluated,
    Selection,
    Task,
    Where,
    depths_of,
    distinct,
    infers,
    record_of,
    title_of,
    without,
)

if TYPE_CHECKING:
    from scse.config.model import Shape
    from scse.data import ProblemCorpus, Sequences
    from scse.problems import Problem
    from scse.runs import Run


class Accuracy(Task):
    """The share of right answers after T loops, by difficulty.

    Answers no harder than those trained on are looked for in one set of examples, which is also that of "all". Harder
    ones have a set each, drawn to have them.
    """

    name = "accuracy"
    counts_loops = True
    spreads = True

    def asked(self, where: Where, column: Column) -> dict[str, Any]:
        return where.asks(self.name, column.depth, settings=_settings(column.difficulty))

    def evaluate(self, run: Run, selection: Selection, columns: Sequence[Column]) -> Evaluated:
        return self.at(run, selection, depths_of(columns), list(dict.fromkeys(column.difficulty for column in columns)))

    @infers
    def at(
        self, run: Run, selection: Selection, depths: Sequence[int], difficulties: Sequence[int | None] | None = None
    ) -> Evaluated:
        """`difficulties`: None among them stands for all answers of the trained difficulties together."""
        corpus = problem_corpus(run, selection)
        problem, depths = corpus.problem, distinct(depths)
        wanted = default_difficulties(problem) if difficulties is None else list(difficulties)
        split = corpus.split(selection.split)
        where = Where.of(corpus, split, selection)
        rows, records = [], []
        for hardest, members in _by_set(problem, wanted).items():
            data, digest = corpus.held_out(split.name, hardest), corpus.digest(split.name, hardest)
            for row in _rows(run, selection, depths, members, data, digest):
                asked = where.asks(self.name, row["depth"], settings={"difficulty": row["difficulty"]})
                rows.append(row)
                records.append(record_of(run, asked, without(row, "depth", "difficulty"), digest))
        if not rows:
            raise UserError(f"no example has an answer of difficulty {wanted[0]}; use more examples than {where.limit}")
        return Evaluated(rows, records, title_of(run, where))

    def tokens(self, limit: int | None, shape: Shape, sequences: int) -> float:
        return min(limit or HELD_OUT, HELD_OUT) * shape.context


def problem_corpus(run: Run, selection: Selection) -> ProblemCorpus:
    """The problem that a run was trained on; an error for a run on text."""
    from scse.data import ProblemCorpus

    corpus, _ = selection.open(run)
    if not isinstance(corpus, ProblemCorpus):
        raise UserError(f"{run.folder} was trained on text ({corpus.name}), whose answers have no difficulty")
    return corpus


def default_difficulties(problem: Problem) -> list[int | None]:
    """As hard as trained, twice and four times that as far as a sequence has room, and all."""
    return [*dict.fromkeys(min(times * problem.hardest, problem.limit) for times in (1, 2, 4)), None]


def _settings(difficulty: int | None) -> dict[str, int | str]:
    return {"difficulty": "all" if difficulty is None else difficulty}


def _by_set(problem: Problem, wanted: Sequence[int | None]) -> dict[int | None, list[int | None]]:
    """Which difficulties are looked for in which examples: by the hardest of those, None for the trained ones."""
    sets: dict[int | None, list[int | None]] = {}
    for difficulty in wanted:
        harder = difficulty is not None and problem.checked(difficulty) > problem.hardest
        sets.setdefault(difficulty if harder else None, []).append(difficulty)
    return sets


def _rows(
    run: Run, selection: Selection, depths: Sequence[int], members: Sequence[int | None], data: Sequences, digest: str
) -> list[dict[str, Any]]:
    from scse.evaluation.accuracy import right_answers, score

    batch, limit = selection.batch, selection.limit
    partial = run.partial({"task": Accuracy.name, "text": digest, "limit": limit, "batch": batch, "depths": depths})
    right = right_answers(run.model, data, depths, batch, limit, selection.show, partial)
    found = [score(data, right[depth], depth, difficulty) for difficulty in members for depth in depths]
    return [asdict(one) for one in found if one is not None]
