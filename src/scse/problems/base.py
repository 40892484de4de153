"""Algorithmic corpora: problems whose answers need a known number of steps. No torch here.

A problem is a seeded generator. It has a vocabulary of its own, sequences of one length, and fixed positions at which
an answer is asked for. Every answer has a difficulty, the number of steps from the question to it, and after T loops
the answer asked for is where T of those steps lead: the answer itself once T reaches the difficulty.

Shapes: B examples, L positions of a sequence, A answers of an example.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from scse.errors import UserError

Ints = NDArray[np.int64]
# The streams of examples: endless for training, fixed for each held-out split.
STREAMS = {"train": 0, "validation": 1, "test": 2}
LINE = 76  # how wide an example is shown


DRAWN, MOST_DRAWS = 64, 200  # how many examples at a time, and how often, are looked through for some of a difficulty


@dataclass(frozen=True)
class Examples:
    """Some examples: `ids` [B, L], the `difficulty` of every answer [B, A], and what the problem knows of each.

    `hidden` are arrays with a row per example from which `Problem.answers` reads the path to each answer.
    """

    ids: Ints
    difficulty: Ints
    hidden: Mapping[str, Ints]

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, which: slice | Ints) -> Examples:
        return Examples(self.ids[which], self.difficulty[which], {k: v[which] for k, v in self.hidden.items()})


@dataclass(frozen=True)
class Problem(ABC):
    """A generator of examples. The fields of a subclass are its options."""

    name: ClassVar[str]
    table: ClassVar[str] = "scse.problems:PROBLEMS"
    # What one step of the solution is called, in the singular.
    step: ClassVar[str] = "step"

    # ------------------------------------------------- what a subclass gives

    @property
    @abstractmethod
    def words(self) -> list[str]:
        """The vocabulary: a word without spaces for each id."""

    @property
    @abstractmethod
    def length(self) -> int:
        """L: how many tokens a sequence has."""

    @property
    def asked(self) -> Ints:
        """The positions [A] that are answered, the same in every example: all of them unless a problem says else."""
        return np.arange(self.length)

    @property
    @abstractmethod
    def hardest(self) -> int:
        """The largest difficulty of a training example."""

    @property
    @abstractmethod
    def limit(self) -> int:
        """The largest difficulty that a sequence of this length can have."""

    @abstractmethod
    def draw(self, random: np.random.Generator, count: int, hardest: int) -> Examples:
        """Examples whose answers have difficulties up to `hardest`, some of them exactly that."""

    @abstractmethod
    def answers(self, examples: Examples, loops: int | None = None) -> Ints:
        """The ids [B, A] asked for after so many loops; None: the answers themselves."""

    @abstractmethod
    def solve(self, ids: Ints) -> Ints:
        """The answers [A] of one sequence, found from its tokens alone by plain search: the oracle."""

    @abstractmethod
    def render(self, examples: Examples, row: int) -> str:
        """One example for people."""

    # ------------------------------------------------- what every problem has

    @property
    def vocabulary(self) -> int:
        return len(self.words)

    @property
    def options(self) -> dict[str, int]:
        """Every option with its value."""
        return {name: int(value) for name, value in asdict(self).items()}

    @property
    def digest(self) -> str:
        """Names what is generated: the problem, its options, and the first examples of the test stream."""
        sample = self.examples(0, "test", 0, 8)
        content = [self.name.encode(), repr(sorted(self.options.items())).encode(), sample.ids.tobytes()]
        return hashlib.sha256(b"\0".join(content)).hexdigest()

    def examples(self, seed: int, split: str, number: int, count: int, hardest: int | None = None) -> Examples:
        """Batch `number` of a stream: a function of its arguments alone."""
        chosen = self.hardest if hardest is None else self.checked(hardest)
        entropy = [seed, STREAMS[split], number, chosen, *self.name.encode()]
        return self.draw(np.random.default_rng(entropy), count, chosen)

    def as_hard_as(self, difficulty: int, seed: int, split: str, count: int) -> Examples:
        """The first examples of a stream whose hardest answer has just this difficulty."""
        found: list[Examples] = []
        for number in range(MOST_DRAWS):
            drawn = self.examples(seed, split, number, DRAWN, difficulty)
            found.append(drawn.rows(np.flatnonzero(drawn.difficulty.max(axis=1) == difficulty)))
            if sum(map(len, found)) >= count:
                parts = {name: np.concatenate([part.hidden[name] for part in found]) for name in found[0].hidden}
                ids, hard = (np.concatenate([getattr(part, name) for part in found]) for name in ("ids", "difficulty"))
                return Examples(ids, hard, parts).rows(slice(count))
        wanted = f"{count} example{'s' * (count > 1)} of {self.name} with {self._stated()}"
        raise UserError(f"cannot find {wanted} whose hardest answer has difficulty {difficulty}; ask for another")

    def checked(self, difficulty: int) -> int:
        """A difficulty that sequences of this length can have."""
        if not 1 <= difficulty <= self.limit:
            raise UserError(
                f"difficulty must be between 1 and {self.limit} for {self.name} with {self._stated()}, got {difficulty}"
            )
        return difficulty

    def verify(self, examples: Examples) -> None:
        """Compare every answer with the oracle's; one that disagrees is an error that shows the example."""
        for ids, wanted in zip(examples.ids, self.answers(examples), strict=True):
            found = self.solve(ids)
            if not np.array_equal(found, wanted):
                at = int(np.flatnonzero(found != wanted)[0])
                raise UserError(
                    f"the generator of {self.name} disagrees with its oracle at answer {at}: "
                    f"{self.words[int(wanted[at])]} against {self.words[int(found[at])]} in: {self.text(ids)}"
                )

    def text(self, ids: Ints) -> str:
        """Ids as words."""
        return " ".join(self.words[int(i)] for i in ids)

    def require(self, name: str, least: int, most: int) -> None:
        """An option within its range."""
        value = getattr(self, name)
        if not least <= value <= most:
            raise UserError(f"{name} must be between {least} and {most} for {self.name}, got {value}")

    def _stated(self) -> str:
        return ", ".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self))


def in_hops(count: int) -> str:
    """'1 hop', '2 hops'"""
    return f"{count} hop" if count == 1 else f"{count} hops"


def aligned(rows: Mapping[str, Sequence[str]], gap: int = 1) -> str:
    """Rows of words below each other, each behind its name, in as many blocks as a line of 76 columns needs."""
    label = max(map(len, rows)) + 2 if any(rows) else 0
    width = max(len(word) for words in rows.values() for word in words)
    each, count = max(1, (LINE - label + gap) // (width + gap)), max(map(len, rows.values()))
    blocks = []
    for begin in range(0, count, each):
        shown = {name: words[begin : begin + each] for name, words in rows.items()}
        lines = [
            f"{name:<{label}}" + (" " * gap).join(f"{word:>{width}}" for word in words) for name, words in shown.items()
        ]
        blocks.append("\n".join(lines))
    return ("\n\n" if len(rows) > 1 else "\n").join(blocks)


def letters(count: int) -> list[str]:
    """Names for nodes and symbols: a … z, then A … Z, then n52, n53, …"""
    alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return [alphabet[i] if i < len(alphabet) else f"n{i}" for i in range(count)]


def shuffled(random: np.random.Generator, rows: int, size: int) -> Ints:
    """A random permutation of 0 … size−1 in each row."""
    return np.argsort(random.random((rows, size)), axis=1).astype(np.int64)
