"""A problem as a corpus: endless examples for training, a fixed number of them in each held-out split."""

from __future__ import annotations

import hashlib

import numpy as np

from scse.data.sequences import UNCOUNTED, Sequences
from scse.data.sources import canonical_split
from scse.data.splits import Corpus, TokenSplit
from scse.data.tokenizer import word_tokenizer
from scse.errors import checked_choice
from scse.problems import Examples, Problem
from scse.problems.base import STREAMS, Ints

HELD_OUT = 1024  # examples of a split
SEED = 0  # of the held-out streams, the same for every run


class ProblemCorpus(Corpus):
    """The examples of a problem as sequences of tokens."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.name, word_tokenizer(problem.words))
        self.problem = problem

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(STREAMS)

    def _canonical(self, name: str) -> str:
        return checked_choice(f"split of problem '{self.name}'", canonical_split(name), STREAMS)

    def _open(self, name: str) -> TokenSplit:
        return TokenSplit(name, self.held_out(name), self.digest(name))

    def digest(self, split: str, difficulty: int | None = None) -> str:
        """Names the examples of a split."""
        return hashlib.sha256(f"{self.problem.digest} {split} {difficulty} {HELD_OUT} {SEED}".encode()).hexdigest()

    def held_out(self, split: str, difficulty: int | None = None) -> Sequences:
        """The fixed examples of a split, asked for the answers themselves; None: as hard as those trained on."""
        return self.sequences(self.problem.examples(SEED, split, 0, HELD_OUT, difficulty))

    def batch(self, seed: int, step: int, count: int, loops: int | Ints) -> Sequences:
        """The training examples of a step, asked for where so many loops lead."""
        return self.sequences(self.problem.examples(seed, "train", step, count), loops)

    def sequences(self, examples: Examples, loops: int | Ints | None = None) -> Sequences:
        """Examples with the answers asked for after so many loops, the same for all or a number for each."""
        if loops is None or isinstance(loops, int):
            answers = self.problem.answers(examples, loops)
        else:
            answers = np.empty_like(examples.difficulty)
            for depth in np.unique(loops):
                answers[loops == depth] = self.problem.answers(examples, int(depth))[loops == depth]
        return Sequences(examples.ids, self._placed(answers, UNCOUNTED), self._placed(examples.difficulty, 0))

    def _placed(self, values: Ints, elsewhere: int) -> Ints:
        """Values of the answers [B, A] at their positions [B, L]"""
        placed = np.full((len(values), self.problem.length), elsewhere, dtype=np.int64)
        placed[:, self.problem.asked] = values
        return placed
