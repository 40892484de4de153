"""Running products over a sequence, one factor a loop: state tracking in S5, and sums modulo m."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cache
from itertools import permutations

import numpy as np

from scse.problems.base import Examples, Ints, Problem, aligned

RESET = "|"


def marks(random: np.random.Generator, count: int, length: int, widest: int) -> Ints:
    """For each position [count, length] the last mark at or before it; marks are at most `widest` apart.

    The first position is a mark. Half of the gaps are the widest, the others of any length.
    """
    last = np.zeros((count, length), dtype=np.int64)
    left = np.zeros(count, dtype=np.int64)
    for i in range(length):
        gap = np.where(random.random(count) < 0.5, widest, random.integers(1, widest + 1, count))
        here = left == 0
        left = np.where(here, gap, left) - 1
        last[:, i] = np.where(here, i, last[:, i - 1])
    return last


@dataclass(frozen=True)
class Scan(Problem):
    """s_i = s_{i−1} · x_i in a group, s = 1 at every reset; a loop takes in one factor more.

    A sequence of group elements x_i and resets. With r the last reset before i, the difficulty is the number of factors
    d(i) = i − r, and

        target_T(i) = x_{i−min(T, d)+1} · … · x_i,   target_T(i) = s_i from T = d(i) on.

    One loop can take one factor: s_i^{t+1} = s_{i−1}^t · x_i looks one position back. Training has at most `factors`
    elements between two resets.
    """

    factors: int = 8
    tokens: int = 48

    step = "factor"

    def __post_init__(self) -> None:
        self.require("tokens", 3, 1024)
        self.require("factors", 1, self.tokens - 1)

    @property
    @abstractmethod
    def elements(self) -> list[str]:
        """The names of the group's elements, the identity first."""

    @property
    @abstractmethod
    def product(self) -> Ints:
        """[a, b] -> a · b"""

    @property
    def words(self) -> list[str]:
        return [*self.elements, RESET]

    @property
    def length(self) -> int:
        return self.tokens

    @property
    def hardest(self) -> int:
        return self.factors

    @property
    def limit(self) -> int:
        return self.tokens - 1

    def draw(self, random: np.random.Generator, count: int, hardest: int) -> Examples:
        place = np.arange(self.tokens)
        last = marks(random, count, self.tokens, hardest + 1)
        order = len(self.elements)
        factor = np.where(last == place, 0, random.integers(0, order, last.shape))
        ids = np.where(last == place, order, factor)
        return Examples(ids, place - last, {"factor": factor, "reset": last})

    def answers(self, examples: Examples, loops: int | None = None) -> Ints:
        factor, reset = examples.hidden["factor"], examples.hidden["reset"]
        most = int(examples.difficulty.max(initial=0))
        place = np.arange(self.tokens)
        state = np.zeros_like(factor)
        for back in reversed(range(most if loops is None else min(loops, most))):
            within = place - back > reset
            state = self.product[state, np.where(within, factor[:, np.maximum(place - back, 0)], 0)]
        return state

    def solve(self, ids: Ints) -> Ints:
        state, found = 0, []
        for token in ids:
            state = 0 if token == len(self.elements) else int(self.product[state, int(token)])
            found.append(state)
        return np.array(found)

    def render(self, examples: Examples, row: int) -> str:
        factors, products = (
            [self.words[int(i)] for i in line] for line in (examples.ids[row], self.answers(examples)[row])
        )
        counts = [str(int(count)) for count in examples.difficulty[row]]
        return aligned({"factors": factors, "products": products, "of": counts}, gap=2)


@dataclass(frozen=True)
class PrefixSum(Scan):
    """s_i = (s_{i−1} + x_i) mod m, s = 0 at every reset: the group is ℤ_m. See `Scan`."""

    modulus: int = 2

    name = "prefix-sum"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("modulus", 2, 100)

    @property
    def elements(self) -> list[str]:
        return [str(i) for i in range(self.modulus)]

    @property
    def product(self) -> Ints:
        numbers = np.arange(self.modulus)
        return (numbers[:, None] + numbers) % self.modulus


@dataclass(frozen=True)
class S5(Scan):
    """s_i = s_{i−1} ∘ x_i: the group is S5, all 120 permutations of five things. See `Scan`."""

    name = "s5"

    @property
    def elements(self) -> list[str]:
        return ["".join(map(str, p)) for p in permutations(range(5))]

    @property
    def product(self) -> Ints:
        return _symmetric_group()


@cache
def _symmetric_group() -> Ints:
    """[a, b] -> the number of a ∘ b, (a ∘ b)(x) = a(b(x)), with permutations numbered in lexicographic order."""
    every = np.array(list(permutations(range(5))))
    composed = every[:, every]  # [a, b, x] -> a(b(x))
    digits = 10 ** np.arange(5)[::-1]
    return np.searchsorted(every @ digits, composed @ digits)
