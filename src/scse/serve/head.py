"""The vocabulary head: how it is computed, for whom it is worth waiting, and what is told of its logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from scse.model import LoopedLM
from scse.nn.products import onednn_product, packed
from scse.serve.sequence import Token

FIXED_SHARE = 0.6  # of a call's time, which does not grow with its rows: the weights are read from memory once a call
LONGEST = 4  # calls, for which a row waits at most
SMOOTHING = 0.2


class Head:
    """Logits of a few rows. The weights are laid out anew for that, once, where the processor's library can.

    An ordinary product of sixteen rows with a large head spends much of its time on the layout. One row goes the same
    way as sixteen, so that a token does not depend on how many are read with it. The copy takes as much memory as the
    weights.
    """

    def __init__(self, model: LoopedLM) -> None:
        self.model = model
        self._packed = None if model.rounded_head is not None else packed(model.head_weight)

    def __call__(self, outputs: Tensor) -> Tensor:
        """[R, d] -> [R, V]"""
        if self._packed is None:
            return self.model.head(outputs)
        return onednn_product(self.model.normed(outputs), self._packed)


class Patience:
    """A call of the head costs nearly as much for one row as for sixteen, so rows that are done wait for others.

    They do until they are a whole batch, or until their waiting has cost as much as the call they save: in each loop
    the machine's time times the share of the batch that is empty because they wait. Where others fill their places it
    costs nothing, and the first of them still waits no longer than a few calls take, so that a shallow request beside
    deep ones stays quick. This decides when a token comes, never which.
    """

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._call: float | None = None
        self._lost = self._waited = 0.0

    def looped(self, seconds: float, waiting: int, moving: int) -> None:
        """A loop was taken by some rows while others waited."""
        self._waited += seconds if waiting else 0.0
        missing = min(waiting, self._batch - moving)
        if missing > 0:
            self._lost += seconds * missing / (missing + moving)

    def read(self, seconds: float) -> None:
        """The head was called."""
        self._call = seconds if self._call is None else self._call + SMOOTHING * (seconds - self._call)
        self._lost = self._waited = 0.0

    def exhausted(self, waiting: int) -> bool:
        call = self._call or 0.0
        return waiting >= self._batch or self._lost >= FIXED_SHARE * call or self._waited >= LONGEST * call


def read(logits: Tensor, tokens: Sequence[int], loops: Sequence[int], top: int) -> list[Token] | None:
    """The log-probabilities of some tokens [R] under logits [R, V], each beside the `top` likeliest.

    None where they are not numbers.
    """
    scores = F.log_softmax(logits.float() if logits.dtype.itemsize < 4 else logits, dim=-1)
    if not bool(scores.amax(1).isfinite().all()):
        return None
    best, names = scores.topk(min(top, scores.shape[1]), dim=1)
    found = []
    for row, (token, taken) in enumerate(zip(tokens, loops, strict=False)):
        others = tuple(zip(names[row].tolist(), best[row].tolist(), strict=True))
        found.append(Token(token, taken, float(scores[row, token]), others))
    return found
