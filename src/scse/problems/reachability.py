"""Which nodes of a directed graph can be reached from a source?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scse.problems.base import Examples, Ints, Problem, aligned, in_hops, letters, shuffled

EDGES_PER_NODE = 2


@dataclass(frozen=True)
class Reachability(Problem):
    """R_0 = {s}, R_{t+1} = R_t ∪ {v : u → v, u ∈ R_t}. After T loops the answer at x is whether x ∈ R_T.

    A directed graph of N nodes and 2N edges, a token for each edge, then the source s, then the N nodes in random
    order; the answer at each is `yes` or `no`. With dist(x) the shortest path from s,

        target_T(x) = yes if dist(x) ≤ T, else no,

    and the difficulty is dist(x); for a node that is never reached, the largest distance of any node that is, after
    which nothing changes. One loop can follow one edge. Most graphs hold a shortest path of exactly `hardest` edges,
    and no edge leads from a reachable node to one that is not.
    """

    nodes: int = 12
    hops: int = 4

    name = "reachability"
    step = "hop"

    def __post_init__(self) -> None:
        self.require("nodes", 3, 64)
        self.require("hops", 1, self.nodes - 2)

    @property
    def words(self) -> list[str]:
        names = letters(self.nodes)
        edges = [f"{a}→{b}" for a in names for b in names]
        return [*edges, *(f"from-{a}" for a in names), *(f"{a}?" for a in names), "no", "yes"]

    @property
    def length(self) -> int:
        return EDGES_PER_NODE * self.nodes + 1 + self.nodes

    @property
    def asked(self) -> Ints:
        return np.arange(EDGES_PER_NODE * self.nodes + 1, self.length)

    @property
    def hardest(self) -> int:
        return self.hops

    @property
    def limit(self) -> int:
        return self.nodes - 2

    @property
    def _no(self) -> int:
        return self.nodes**2 + 2 * self.nodes

    def draw(self, random: np.random.Generator, count: int, hardest: int) -> Examples:
        n, rows = self.nodes, np.arange(count)
        reachable = random.integers(hardest + 1, n, count)  # the nodes 0 … reachable−1, node 0 being the source
        chain = random.integers(1, hardest + 1, count)
        chain[rows % 4 != 0] = hardest
        depth = np.zeros((count, n), dtype=np.int64)
        edges = np.zeros((count, EDGES_PER_NODE * n, 2), dtype=np.int64)
        for x in range(1, n):
            hang = (random.random((count, x)) * (depth[:, :x] < hardest)).argmax(axis=1)
            parent = np.where(x <= chain, x - 1, hang)
            inside = x < reachable
            depth[:, x] = np.where(inside, depth[rows, parent] + 1, n)
            anywhere = random.integers(0, n, count)
            edges[:, x] = np.where(
                inside[:, None], np.stack([parent, 0 * rows + x], 1), np.stack([0 * rows + x, anywhere], 1)
            )
        for k in (0, *range(n, EDGES_PER_NODE * n)):
            u, v = random.integers(0, n, count), random.integers(0, n, count)
            # An edge that would make a path shorter, or reach the unreachable, is turned round.
            turned = depth[rows, v] > depth[rows, u] + 1
            edges[:, k] = np.stack([np.where(turned, v, u), np.where(turned, u, v)], 1)
        return self._named(random, edges, depth)

    def _named(self, random: np.random.Generator, edges: Ints, depth: Ints) -> Examples:
        """Give the nodes random names, and the edges and questions a random order."""
        count, n = depth.shape
        name, query = shuffled(random, count, n), shuffled(random, count, n)
        order = shuffled(random, count, edges.shape[1])
        ends = np.take_along_axis(name, edges.reshape(count, -1), 1).reshape(edges.shape)
        drawn = np.take_along_axis(ends[..., 0] * n + ends[..., 1], order, 1)
        distance = np.empty_like(depth)
        np.put_along_axis(distance, name, depth, 1)
        at = np.take_along_axis(distance, query, 1)
        ended = np.where(at < n, at, 0).max(axis=1, keepdims=True)
        ids = np.concatenate([drawn, n * n + name[:, :1], n * n + n + query], axis=1)
        return Examples(ids, np.where(at < n, at, ended), {"distance": at})

    def answers(self, examples: Examples, loops: int | None = None) -> Ints:
        most = self.nodes - 1 if loops is None else min(loops, self.nodes - 1)
        return self._no + (examples.hidden["distance"] <= most)

    def solve(self, ids: Ints) -> Ints:
        n = self.nodes
        edges = [divmod(int(t), n) for t in ids[: EDGES_PER_NODE * n]]
        reached = {int(ids[EDGES_PER_NODE * n]) - n * n}
        while more := {v for u, v in edges if u in reached} - reached:
            reached |= more
        queries = [int(t) - n * n - n for t in ids[-n:]]
        return np.array([self._no + (x in reached) for x in queries])

    def render(self, examples: Examples, row: int) -> str:
        ids, n = examples.ids[row], self.nodes
        answers = self.answers(examples)[row]
        edges = aligned({"edges ": self.text(ids[: EDGES_PER_NODE * n]).split()})
        lines = [edges, "source  " + self.text(ids[-n - 1 : -n])]
        for token, answer, difficulty in zip(ids[-n:], answers, examples.difficulty[row], strict=True):
            lines.append(f"{self.words[int(token)]}      {self.words[int(answer)]}   ({in_hops(difficulty)})")
        return "\n".join(lines)
