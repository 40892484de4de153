"""Add two numbers whose carries run far."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scse.problems.base import Examples, Ints, Problem
from scse.problems.scans import marks

BASE = 10


@dataclass(frozen=True)
class Addition(Problem):
    """c_{i+1} = 1{a_i + b_i + c_i ≥ 10}, answer (a_i + b_i + c_i) mod 10; a loop brings the carry one digit on.

    Two numbers of `digits` digits, least significant first; one token is a pair of digits. A pair with a sum of nine
    hands on whatever carry it gets, every other pair decides it. With j < i the last deciding pair before i, the
    difficulty is d(i) = i − j (and i where there is none), and

        target_T(i) = (a_i + b_i + c) mod 10 with c computed from the T pairs before i, none coming into the first.

    One loop can carry over one digit. Training has deciding pairs at most `carries` apart.
    """

    digits: int = 32
    carries: int = 6

    name = "addition"
    step = "carry"

    def __post_init__(self) -> None:
        self.require("digits", 2, 1024)
        self.require("carries", 1, self.digits - 1)

    @property
    def words(self) -> list[str]:
        return [f"{a}+{b}" for a in range(BASE) for b in range(BASE)] + [str(d) for d in range(BASE)]

    @property
    def length(self) -> int:
        return self.digits

    @property
    def hardest(self) -> int:
        return self.carries

    @property
    def limit(self) -> int:
        return self.digits - 1

    def draw(self, random: np.random.Generator, count: int, hardest: int) -> Examples:
        last = marks(random, count, self.digits, hardest)
        place = np.arange(self.digits)
        a = random.integers(0, BASE, last.shape)
        other = random.integers(0, BASE - 1, last.shape)
        nine = BASE - 1 - a
        b = np.where(last == place, other + (other >= nine), nine)  # anything but the digit that makes nine
        before = np.concatenate([np.zeros((count, 1), dtype=np.int64), last[:, :-1]], axis=1)
        return Examples(BASE * a + b, place - before, {"sum": a + b})

    def answers(self, examples: Examples, loops: int | None = None) -> Ints:
        pairs = examples.hidden["sum"]
        place = np.arange(self.digits)
        carry = np.zeros_like(pairs)
        most = int(examples.difficulty.max(initial=0))
        for back in reversed(range(1, 1 + (most if loops is None else min(loops, most)))):
            there = np.where(place >= back, pairs[:, np.maximum(place - back, 0)], 0)
            carry = (there + carry >= BASE).astype(np.int64)
        return BASE * BASE + (pairs + carry) % BASE

    def solve(self, ids: Ints) -> Ints:
        number = sum((int(t) // BASE + int(t) % BASE) * BASE**i for i, t in enumerate(ids))
        return np.array([BASE * BASE + number // BASE**i % BASE for i in range(len(ids))])

    def render(self, examples: Examples, row: int) -> str:
        pairs = [(int(t) // BASE, int(t) % BASE) for t in examples.ids[row]][::-1]
        digits = [str(int(t) - BASE * BASE) for t in self.answers(examples)[row]][::-1]
        first, second = ("".join(str(pair[k]) for pair in pairs) for k in range(2))
        far = "".join(f"{min(int(d), 9)}" for d in examples.difficulty[row][::-1])
        about = f"the last {len(digits)} digits, and how far the carry into each may come from"
        return f"  {first}\n+ {second}\n= {''.join(digits)}\n  {far}\n{about}"
