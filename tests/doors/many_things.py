"""A guest that brings one of each: a problem, an exit rule, a depth sampler, a term of an objective, and a task."""

from dataclasses import dataclass

import numpy as np

from scse import (
    DepthSampler,
    Evaluated,
    Examples,
    ExitRule,
    Problem,
    Task,
    Term,
    register,
)
from scse.tasks import Where, record_of


@dataclass(frozen=True)
class Countdown(Problem):
    """After T loops the answer to n is max(0, n − T)."""

    largest: int = 4

    name = "countdown"

    @property
    def words(self):
        return [str(n) for n in range(self.largest + 1)]

    @property
    def length(self):
        return 2

    @property
    def asked(self):
        return np.array([1])

    @property
    def hardest(self):
        return self.largest

    @property
    def limit(self):
        return self.largest

    def draw(self, random, count, hardest):
        numbers = random.integers(0, hardest + 1, (count, 1))
        return Examples(np.repeat(numbers, 2, axis=1), numbers, {"number": numbers})

    def answers(self, examples, loops=None):
        number = examples.hidden["number"]
        return np.zeros_like(number) if loops is None else np.maximum(0, number - loops)

    def solve(self, ids):
        return np.array([0])

    def render(self, examples, row):
        return self.text(examples.ids[row])


class Always(ExitRule):
    """0: everything stops after one loop."""

    name = "always"

    def statistic(self, model, before, after, codas=(None, None)):
        return (after - before).sum(-1) * 0


class Odd(DepthSampler):
    """T uniform over 1, 3, … up to 2n − 1."""

    name = "odd"

    def draw(self, random, n, count):
        return 2 * random.integers(0, n, count) + 1

    def mean(self, n):
        return float(n)


class Size(Term):
    """‖h_T‖² over all positions"""

    name = "size"

    def value(self, walk, number):
        return walk.last.hidden.square().sum()


class Weights(Task):
    """How many parameters a run has."""

    name = "weights"

    def asked(self, where, column):
        return where.asks(self.name)

    def evaluate(self, run, selection, columns):
        corpus, split = selection.open(run)
        where = Where.of(corpus, split, selection)
        count = float(sum(p.numel() for p in run.model.parameters()))
        record = record_of(run, where.asks(self.name), {"count": count}, split.digest)
        return Evaluated([{"count": count}], [record], "weights")


register(Countdown)
register(Always())
register(Odd())
register(Size())
register(Weights())
