"""Follow pointers to the end of their chain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scse.problems.base import Examples, Ints, Problem, aligned, in_hops, letters, shuffled


@dataclass(frozen=True)
class PointerChase(Problem):
    """f(x) is where node x points; a root points to itself. After T loops the answer at x is f^T(x).

    N nodes form a forest: f: {0 … N−1} → {0 … N−1}, and every x reaches a root r with f(r) = r after d(x) hops, its
    difficulty. The sequence is the N edges (x, f(x)) in random order, a token for each pair, then the N nodes in random
    order, a token each; an answer is asked for at the nodes, and it is a node:

        target_T(x) = f^T(x),   f^{d(x)}(x) = f^{d(x)+1}(x) = …  the root.

    One loop can make one hop: attention from x to the edge that begins at x. The forest begins with a chain of 1 to
    `hardest` hops; every other node hangs anywhere less deep than that, or, `roots` % of them, is a root.
    """

    nodes: int = 16
    hops: int = 6
    roots: int = 10

    name = "pointer-chase"
    step = "hop"

    def __post_init__(self) -> None:
        self.require("nodes", 2, 128)
        self.require("hops", 1, self.nodes - 1)
        self.require("roots", 0, 100)

    @property
    def words(self) -> list[str]:
        names = letters(self.nodes)
        return [f"{a}→{b}" for a in names for b in names] + [f"{a}?" for a in names]

    @property
    def length(self) -> int:
        return 2 * self.nodes

    @property
    def asked(self) -> Ints:
        return np.arange(self.nodes, 2 * self.nodes)

    @property
    def hardest(self) -> int:
        return self.hops

    @property
    def limit(self) -> int:
        return self.nodes - 1

    def draw(self, random: np.random.Generator, count: int, hardest: int) -> Examples:
        n = self.nodes
        rows = np.arange(count)
        parent = np.zeros((count, n), dtype=np.int64)  # in the order in which nodes are hung up
        depth = np.zeros((count, n), dtype=np.int64)
        chain = random.integers(1, hardest + 1, count)
        for x in range(1, n):
            # The first nodes are one chain; each later one hangs anywhere above the deepest level, or is a root.
            weight = random.random((count, x)) * (depth[:, :x] < hardest)
            chosen = weight.argmax(axis=1)
            rooted = random.random(count) < self.roots / 100
            chained = x <= chain
            parent[:, x] = np.where(chained, x - 1, np.where(rooted, x, chosen))
            own = depth[rows, parent[:, x]] + 1
            depth[:, x] = np.where(~chained & rooted, 0, own)
        name = shuffled(random, count, n)
        pointer, distance = np.empty_like(parent), np.empty_like(depth)
        np.put_along_axis(pointer, name, np.take_along_axis(name, parent, 1), 1)
        np.put_along_axis(distance, name, depth, 1)
        edge, query = shuffled(random, count, n), shuffled(random, count, n)
        ids = np.concatenate([edge * n + np.take_along_axis(pointer, edge, 1), n * n + query], axis=1)
        return Examples(ids, np.take_along_axis(distance, query, 1), {"pointer": pointer, "query": query})

    def answers(self, examples: Examples, loops: int | None = None) -> Ints:
        pointer, at = examples.hidden["pointer"], examples.hidden["query"]
        for _ in range(self.nodes - 1 if loops is None else min(loops, self.nodes - 1)):
            at = np.take_along_axis(pointer, at, 1)
        return self.nodes**2 + at

    def solve(self, ids: Ints) -> Ints:
        n = self.nodes
        points = {int(edge) // n: int(edge) % n for edge in ids[:n]}
        found = []
        for query in ids[n:]:
            at = int(query) - n * n
            while points[at] != at:
                at = points[at]
            found.append(n * n + at)
        return np.array(found)

    def render(self, examples: Examples, row: int) -> str:
        n, names = self.nodes, letters(self.nodes)
        pointer = examples.hidden["pointer"][row]
        lines = [aligned({"edges ": self.text(examples.ids[row, :n]).split()})]
        for query, difficulty in zip(examples.hidden["query"][row], examples.difficulty[row], strict=True):
            path = [int(query)]
            while pointer[path[-1]] != path[-1]:
                path.append(int(pointer[path[-1]]))
            lines.append(f"{names[query]}?      {' → '.join(names[x] for x in path)}   ({in_hops(difficulty)})")
        return "\n".join(lines)
