"""What a step sees: a pure function of (seed, step) and of its depth, so resuming needs no reader state.

Of a text, an epoch cuts the tokens into non-overlapping windows from a random offset and visits them in random order.
The last token of a window is the first of the next, so that each token of an epoch is a target once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from scse.config import TrainConfig
from scse.data import Corpus, ProblemCorpus, Sequences
from scse.errors import UserError
from scse.training.streams import generator


class BatchSource(ABC):
    """`batch(step, loops)` are the ids [batch, context] of an optimiser step and their targets.

    `loops` is the depth of the step, or of each sequence [batch].
    `counted` is how many of the targets count in every step.
    """

    counted: int

    @abstractmethod
    def batch(self, step: int, loops: int | np.ndarray) -> tuple[Tensor, Tensor]: ...


class ProblemBatches(BatchSource):
    """Examples of a problem: the targets are where as many steps lead as the model makes loops."""

    def __init__(self, corpus: ProblemCorpus, batch: int, seed: int) -> None:
        self.corpus, self.size, self.seed = corpus, batch, seed
        self.counted = batch * len(corpus.problem.asked)

    def batch(self, step: int, loops: int | np.ndarray) -> tuple[Tensor, Tensor]:
        found = self.corpus.batch(self.seed, step, self.size, loops)
        return torch.from_numpy(found.ids), torch.from_numpy(found.targets)


class TextBatches(BatchSource):
    """Windows of a text: every target counts, and is the next token."""

    def __init__(self, tokens: np.ndarray, context: int, batch: int, seed: int) -> None:
        # One window less than fits, so that every offset below `context` leaves room for all of them.
        self.windows = (len(tokens) - context) // context
        if self.windows < 1:
            raise UserError(
                f"the training split has {len(tokens)} tokens, too few for a context of {context}; "
                f"at least {2 * context} are needed: use more text or --set context={max(1, len(tokens) // 2)}"
            )
        self.tokens = tokens
        self.context = context
        self.size = batch
        self.counted = batch * context
        self.seed = seed
        self._epoch = lru_cache(maxsize=2)(self._draw_epoch)

    def batch(self, step: int, loops: int | np.ndarray) -> tuple[Tensor, Tensor]:
        rows = self.rows(step)
        return rows[:, :-1], rows[:, 1:]

    def rows(self, step: int) -> Tensor:
        """The windows of a step [batch, context + 1]"""
        return torch.from_numpy(np.stack([self._window(step * self.size + row) for row in range(self.size)]))

    def _window(self, sample: int) -> np.ndarray:
        epoch, position = divmod(sample, self.windows)
        offset, order = self._epoch(epoch)
        start = offset + int(order[position]) * self.context
        return self.tokens[start : start + self.context + 1].astype(np.int64)

    def _draw_epoch(self, epoch: int) -> tuple[int, np.ndarray]:
        random = generator(self.seed, "data", epoch)
        return int(random.integers(self.context)), random.permutation(self.windows)


def batch_source(corpus: Corpus, config: TrainConfig, seed: int = 0) -> BatchSource:
    """The training data of a run; another `seed` than 0 gives another order of it."""
    seed += config.data_seed
    if isinstance(corpus, ProblemCorpus):
        return ProblemBatches(corpus, config.batch, seed)
    tokens = corpus.split("train").tokens
    assert not isinstance(tokens, Sequences)
    return TextBatches(tokens, config.model.shape.context, config.batch, seed)
