"""Induction, repeated: where did this symbol stand before, and what followed it?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scse.problems.base import Examples, Ints, Problem, aligned, in_hops, letters, shuffled


@dataclass(frozen=True)
class PHop(Problem):
    """find(i) = max { j ≤ i : x_{j−1} = x_i }, or i where there is none; the answer at i is x_{find^T(i)}.

    A sequence x of symbols. From position i look for the last earlier place where the symbol x_i stands and step to
    the one after it. The hops end where a symbol stands for the first time, and how many there are until then is the
    difficulty d(i):

        target_T(i) = x_{find^T(i)},   find^{d(i)}(i) = find^{d(i)+1}(i) = …

    A sequence uses a random part of the alphabet: few symbols recur soon and make long chains, many make short ones.
    A symbol that would make a chain longer than `hardest` is not drawn. Every position is asked.
    """

    symbols: int = 24
    tokens: int = 48
    hops: int = 6

    name = "p-hop"
    step = "hop"

    def __post_init__(self) -> None:
        self.require("symbols", 2, 1000)
        self.require("tokens", 4, 1024)
        self.require("hops", 1, self.limit)

    @property
    def words(self) -> list[str]:
        return letters(self.symbols)

    @property
    def length(self) -> int:
        return self.tokens

    @property
    def hardest(self) -> int:
        return self.hops

    @property
    def limit(self) -> int:
        return self.tokens // 2  # longer chains exist, but are too rare to be drawn

    def draw(self, random: np.random.Generator, count: int, hardest: int) -> Examples:
        rows = np.arange(count)
        # A symbol among k recurs after about k positions, so a chain from the end has about tokens / k hops.
        most = max(2, min(self.symbols, round(2 * self.tokens / hardest)))
        used = np.zeros((count, self.symbols), dtype=bool)
        np.put_along_axis(
            used,
            shuffled(random, count, self.symbols),
            np.arange(self.symbols) < random.integers(2, most + 1, (count, 1)),
            1,
        )
        ids, find, difficulty = (np.zeros((count, self.tokens), dtype=np.int64) for _ in range(3))
        after = np.full((count, self.symbols), -1, dtype=np.int64)  # the place behind each symbol's last appearance
        chain = np.zeros((count, self.symbols), dtype=np.int64)  # how many hops that place would make it
        for i in range(self.tokens):
            if i:
                after[rows, ids[:, i - 1]], chain[rows, ids[:, i - 1]] = i, 0  # the same symbol again stays where it is
            # Every other symbol on average continues the longest chain there is, or long ones would be rare.
            wish = random.random(used.shape) + chain * (random.random((count, 1)) < 0.5)
            symbol = np.where(used & (chain <= hardest), wish, -1.0).argmax(axis=1)
            place = after[rows, symbol]
            ids[:, i], find[:, i] = symbol, np.where(place < 0, i, place)
            difficulty[:, i] = chain[rows, symbol]
            if i:
                chain[rows, ids[:, i - 1]] = difficulty[:, i] + 1
        return Examples(ids, difficulty, {"find": find})

    def answers(self, examples: Examples, loops: int | None = None) -> Ints:
        find = examples.hidden["find"]
        at = np.broadcast_to(np.arange(self.tokens), find.shape)
        for _ in range(self.tokens if loops is None else min(loops, self.tokens)):
            at = np.take_along_axis(find, at, 1)
        return np.take_along_axis(examples.ids, at, 1)

    def solve(self, ids: Ints) -> Ints:
        x = [int(i) for i in ids]
        found = []
        for i in range(len(x)):
            at = i
            while True:
                earlier = [j for j in range(1, at + 1) if x[j - 1] == x[at]]
                if not earlier or earlier[-1] == at:
                    break
                at = earlier[-1]
            found.append(x[at])
        return np.array(found)

    def render(self, examples: Examples, row: int) -> str:
        ids, find = examples.ids[row], examples.hidden["find"][row]
        at = len(ids) - 1 - int(np.argmax(examples.difficulty[row][::-1]))  # the last of the longest chains
        path = [at]
        while find[at] != at:
            at = int(find[at])
            path.append(at)
        hops = " → ".join(f"{self.words[int(ids[i])]}@{i}" for i in path)
        return f"{aligned({'': self.text(ids).split()})}\nthe longest chain: {hops}   ({in_hops(len(path) - 1)})"
