"""Which windows of the data a step sees: a pure function of (seed, step), so resuming needs no reader state.

An epoch cuts the tokens into non-overlapping windows from a random offset and visits them in random order. The last
token of a window is the first of the next, so that each token of an epoch is a target once.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from scse.errors import UserError
from scse.training.streams import generator


class BatchSource:
    """`rows(step)` are the sequences [batch, context + 1] of an optimiser step."""

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
        self.batch = batch
        self.seed = seed
        self._epoch = lru_cache(maxsize=2)(self._draw_epoch)

    def rows(self, step: int) -> Tensor:
        return torch.from_numpy(np.stack([self._window(step * self.batch + row) for row in range(self.batch)]))

    def _window(self, sample: int) -> np.ndarray:
        epoch, position = divmod(sample, self.windows)
        offset, order = self._epoch(epoch)
        start = offset + int(order[position]) * self.context
        return self.tokens[start : start + self.context + 1].astype(np.int64)

    def _draw_epoch(self, epoch: int) -> tuple[int, np.ndarray]:
        random = generator(self.seed, "data", epoch)
        return int(random.integers(self.context)), random.permutation(self.windows)
