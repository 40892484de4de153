"""From logits to the next token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from scse.config.use import TEMPERATURE, TOP_P
from scse.devices import CPU
from scse.errors import UserError


@dataclass(frozen=True)
class Sampling:
    """p ∝ exp(logits / temperature), cut to the fewest tokens whose probabilities reach `top_p`; 0 is the likeliest."""

    temperature: float = TEMPERATURE
    top_p: float = TOP_P

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature must not be negative, got {self.temperature}; 0 takes the likeliest token")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top-p must be above 0 and at most 1, got {self.top_p}")

    def pick(self, logits: Tensor, draws: torch.Generator) -> int:
        """The next token for the logits of one position [V]"""
        return self.choose(logits[None], [draws])[0]

    def choose(self, logits: Tensor, draws: Sequence[torch.Generator]) -> list[int]:
        """The next token of every row [B, V], each drawn by the host from a generator of its own."""
        if self.temperature == 0:
            best, _ = likeliest(logits)
            return best
        return [self._draw(row, draw) for row, draw in zip(logits.cpu(), draws, strict=True)]

    def _draw(self, logits: Tensor, draws: torch.Generator) -> int:
        """A token of those that `top_p` leaves, for logits [V].

        Nothing is sorted. A token is drawn from all; what is likelier than it (or as likely and before it) shows
        whether it is among the fewest that reach `top_p`. If not, nor is anything less likely, and of the rest another
        is drawn, until one is.
        """
        # In float64, where even the smallest positive temperature leaves numbers.
        shares = ((logits.double() - logits.max()) / self.temperature).softmax(0)
        while True:
            below = shares.cumsum(0)
            if not below[-1].isfinite():
                raise UserError("the model's numbers overflowed at this depth; take fewer loops")
            place = torch.rand(1, dtype=below.dtype, generator=draws) * below[-1]
            token = int(torch.searchsorted(below, place, right=True))
            if token == len(below):  # the product was rounded up to the whole sum
                token = int(shares.argmax())
            share = shares[token]
            likelier = shares > share
            likelier[:token] |= shares[:token] == share
            if self.top_p == 1 or float(shares[likelier].sum()) < self.top_p:
                return token
            shares = torch.where(likelier, shares, 0.0)


DEFAULT_SAMPLING = Sampling()
GREEDY = Sampling(temperature=0)


def likeliest(logits: Tensor) -> tuple[list[int], list[bool]]:
    """The first of the largest logits in each row [R, V], and whether it is finite: what is no number is the largest.

    On a processor numpy finds it many times faster.
    """
    if logits.device != CPU:
        most, first = logits.max(-1)
        return first.tolist(), most.isfinite().tolist()
    numbers = (logits.float() if logits.dtype.itemsize < 4 else logits).detach().numpy()
    found = numbers.argmax(1)
    return found.tolist(), np.isfinite(numbers[np.arange(len(found)), found]).tolist()
