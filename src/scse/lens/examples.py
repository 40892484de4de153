"""An example of a problem under the lens: its tokens, its answers, and where every loop should have led."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scse.data import ProblemCorpus
from scse.data.problem import HELD_OUT, SEED
from scse.errors import UserError
from scse.lens.look import Answer
from scse.problems import PROBLEMS
from scse.runs import Run


@dataclass(frozen=True)
class ShownExample:
    """`targets` are the answers, -1 where nothing is asked; `truth[position][t]` is what is expected after t loops."""

    ids: list[int]
    targets: list[int]
    truth: list[list[Answer] | None]


def is_of_a_problem(run: Run) -> bool:
    return run.config.corpus in PROBLEMS


def shown_example(run: Run, number: int, difficulty: int | None, loops: int) -> ShownExample:
    """Example `number` of the test split, from 0: as hard as those trained on, or drawn to be of a difficulty."""
    corpus = run.corpus(None, None, None, progress=False)
    if not isinstance(corpus, ProblemCorpus):
        raise UserError(f"{run.folder} was trained on text ({corpus.name}); leave --example out, give --text or --file")
    if not 0 <= number < HELD_OUT:
        raise UserError(f"--example must be between 0 and {HELD_OUT - 1}, got {number}")
    problem = corpus.problem
    if difficulty is None:
        found = problem.examples(SEED, "test", 0, HELD_OUT).rows(slice(number, number + 1))
    else:
        found = problem.as_hard_as(difficulty, SEED, "test", number + 1).rows(slice(number, None))
    paths = np.stack([problem.answers(found, t)[0] for t in range(1, loops + 1)], axis=1)  # [A, T]
    targets = np.full(problem.length, -1)
    targets[problem.asked] = problem.answers(found)[0]
    expected: list[list[Answer] | None] = [None] * problem.length
    for place, path in zip(problem.asked, paths, strict=True):
        expected[int(place)] = [None, *(int(token) for token in path)]
    return ShownExample(found.ids[0].tolist(), targets.tolist(), expected)
