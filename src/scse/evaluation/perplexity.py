"""Fixed-depth perplexity: every depth from one unroll, token-weighted, then exponentiated.

Shapes: B batch, L context, d width.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from scse.config.use import BATCH
from scse.data import UNCOUNTED, Readable, Sequences
from scse.devices import wide
from scse.errors import UserError
from scse.measure import clock, elapsed
from scse.model import LoopedLM, evaluating
from scse.progress import progress
from scse.runs.partial import Found, Partial, over_batches


@dataclass(frozen=True)
class DepthResult:
    """Mean negative log-likelihood per token at one depth, and its exponential."""

    depth: int
    nll: float
    ppl: float
    tokens: int


def windows(tokens: Readable, context: int, batch: int, limit: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches (inputs, targets) of non-overlapping windows in order; the last, shorter window comes alone.

    Of sequences, each is a window.
    """
    if isinstance(tokens, Sequences):
        count = window_count(tokens, context, limit)
        for first in range(0, count, batch):
            yield _cut(tokens, context, range(first, min(first + batch, count)))
        return
    if len(tokens) < 2:
        raise UserError(f"a split of {len(tokens)} tokens has nothing to predict; at least 2 are needed")
    if limit is not None:
        tokens = tokens[: limit * context + 1]
    full = (len(tokens) - 1) // context
    for first in range(0, full, batch):
        yield _cut(tokens, context, range(first, min(first + batch, full)))
    rest = tokens[full * context :].astype(np.int64)
    if len(rest) > 1:
        yield torch.from_numpy(rest[None, :-1]), torch.from_numpy(rest[None, 1:])


def whole_windows(tokens: Readable, context: int, batch: int, batches: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    """The first `batches` of `windows`, all of one shape; what fills no window, or no batch, is left out.

    For means over batches, in which a short one would count as much as the others. A split of fewer windows than a
    batch gives them all as one.
    """
    found = window_count(tokens, context)
    if found < 1:
        raise UserError(
            f"a split of {len(tokens)} tokens has no whole window of {context + 1}; choose a longer text or split"
        )
    batch = min(batch, found)
    yield from islice(windows(tokens, context, batch, found), min(batches, found // batch))


def spread_windows(
    tokens: Readable, context: int, batch: int, count: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of `count` full windows at even distances over the whole text; all windows where there are no more."""
    full = window_count(tokens, context)
    if count is None or count >= full:
        yield from windows(tokens, context, batch)
        return
    chosen = np.linspace(0, full - 1, count).astype(np.int64)
    for first in range(0, count, batch):
        yield _cut(tokens, context, chosen[first : first + batch])


def window_count(tokens: Readable, context: int, limit: int | None = None) -> int:
    """How many windows are full."""
    full = len(tokens) if isinstance(tokens, Sequences) else (len(tokens) - 1) // context
    return full if limit is None else min(full, limit)


def target_count(tokens: Readable, context: int, limit: int | None = None) -> int:
    """How many targets `windows` gives that count."""
    if isinstance(tokens, Sequences):
        return int((tokens.targets[:limit] != UNCOUNTED).sum())
    return len(tokens) - 1 if limit is None else min(len(tokens) - 1, limit * context)


def counted_targets(targets: Tensor) -> int:
    """How many targets of a batch count."""
    return int((targets != UNCOUNTED).sum())


def _cut(tokens: Readable, context: int, rows: Iterable[int]) -> tuple[Tensor, Tensor]:
    if isinstance(tokens, Sequences):
        chosen = np.fromiter(rows, np.int64)
        return torch.from_numpy(tokens.ids[chosen]), torch.from_numpy(tokens.targets[chosen])
    cut = np.stack([tokens[row * context : (row + 1) * context + 1] for row in rows]).astype(np.int64)
    return torch.from_numpy(cut[:, :-1]), torch.from_numpy(cut[:, 1:])


def perplexity_over_depths(
    model: LoopedLM,
    tokens: Readable,
    depths: Sequence[int],
    batch: int = BATCH,
    limit: int | None = None,
    show: bool = False,
    partial: Partial | None = None,
) -> list[DepthResult]:
    """One result per depth, in the order given. `limit` keeps only the first windows, `show` shows progress.

    With a `partial`, one that was ended goes on where it was.
    """
    results, _ = timed_perplexity(model, tokens, depths, batch, limit, show, partial)
    if partial:
        partial.forget()
    return results


@torch.no_grad()
def timed_perplexity(
    model: LoopedLM,
    tokens: Readable,
    depths: Sequence[int],
    batch: int,
    limit: int | None,
    show: bool,
    partial: Partial | None,
) -> tuple[list[DepthResult], float]:
    """The same with the seconds that its batches took, whenever and in whichever process; a `partial` is kept."""
    if not depths or min(depths) < 1:
        raise UserError(f"depths must be at least 1, got {list(depths)}")
    context = model.config.shape.context

    def one(batch: tuple[Tensor, Tensor]) -> Found:
        inputs, targets = batch
        begin = clock(model.device)
        nll = _batch_nll(model, inputs, targets, depths)
        return {"tokens": counted_targets(targets), "nll": nll, "seconds": elapsed(begin, model.device)}

    total = target_count(tokens, context, limit)
    with evaluating(model), progress("evaluating", total, "tok", enabled=show) as meter:
        texts = windows(tokens, context, batch, limit)
        found = over_batches(texts, one, partial, lambda part: meter.advance(part["tokens"]))
    count = sum(part["tokens"] for part in found)
    means = [sum(losses) / count for losses in zip(*(part["nll"] for part in found), strict=True)]
    results = [DepthResult(depth, mean, perplexity(mean), count) for depth, mean in zip(depths, means, strict=True)]
    return results, sum(part.get("seconds", 0.0) for part in found)  # which earlier versions did not keep


def _batch_nll(model: LoopedLM, inputs: Tensor, targets: Tensor, depths: Sequence[int]) -> list[float]:
    """Σ −log p(target) over a batch at each depth."""
    ids, wanted = model.place(inputs, targets)
    found: dict[int, Tensor] = {}
    for state in islice(model.unroll(ids), max(depths) + 1):
        if state.t in depths:
            found[state.t] = model.token_nll(state.hidden, wanted).sum(dtype=wide(model.device))
    sums: list[float] = torch.stack([found[depth] for depth in depths]).tolist()  # fetched together
    return sums


def perplexity(nll: float) -> float:
    """exp(nll), infinite where that is beyond a float."""
    return math.exp(nll) if nll < 709 else math.inf
