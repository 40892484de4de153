"""Thresholds for adaptive depth, chosen on validation data: for a mean loop budget, or for a loss in quality.

Shapes: N examples (windows), T ceiling.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from scse.data import Readable
from scse.devices import wide
from scse.errors import UserError
from scse.evaluation.perplexity import counted_targets, spread_windows
from scse.evaluation.rules import Stopping
from scse.model import LoopedLM
from scse.progress import SILENT, Meter
from scse.runs.partial import Found, Partial, over_batches

# A threshold whose mean depth on validation misses its budget by more than this is not what was asked for.
BUDGET_TOLERANCE = 1.5
QUALITY_CUTS = 1001
ROUNDING = 1e-12  # the same losses added up in another order are the same quality


class UnreachableBudget(UserError):
    """No threshold gives a mean depth near the budget."""


@dataclass(frozen=True)
class Trace:
    """The rule's statistic of every example after each step [N, T], and the summed nll of each where asked for."""

    statistics: np.ndarray
    nll: np.ndarray
    tokens: int


@torch.no_grad()
def trace(
    model: LoopedLM,
    data: Readable,
    stopping: Stopping,
    meter: Meter = SILENT,
    with_nll: bool = False,
    partial: Partial | None = None,
) -> Trace:
    """Unroll windows, spread over the data, to the ceiling. With a `partial`, one that was ended goes on where it was.

    Without `with_nll` no predictions are made, which is most of the work.
    """

    def one(batch: tuple[Tensor, Tensor]) -> Found:
        inputs, targets = batch
        moved: list[Tensor] = []
        nll: list[Tensor] = []
        before: Tensor | None = None
        ids, wanted = model.place(inputs, targets)
        for state in islice(model.unroll(ids), stopping.ceiling + 1):
            after = state.hidden
            if before is not None:
                moved.append(stopping.rule.of_examples(stopping.rule.statistic(model, before, after)))
                if with_nll:
                    nll.append(model.token_nll(after, wanted).view(wanted.shape).sum(1, dtype=wide(model.device)))
            before = after
        losses = torch.stack(nll, dim=1).tolist() if with_nll else []
        return {"tokens": counted_targets(targets), "moved": torch.stack(moved, dim=1).tolist(), "nll": losses}

    texts = spread_windows(data, model.config.shape.context, stopping.batch, stopping.windows)
    found = over_batches(texts, one, partial, lambda part: meter.advance(part["tokens"]))
    statistics, losses = (np.array([row for part in found for row in part[name]]) for name in ("moved", "nll"))
    return Trace(statistics, losses if with_nll else np.zeros((0, 0)), sum(part["tokens"] for part in found))


def exit_depths(statistics: np.ndarray, threshold: float) -> np.ndarray:
    """The first step at which the statistic is at most the threshold, or the ceiling [N]."""
    below = statistics <= threshold
    depths: np.ndarray = np.where(below.any(axis=1), below.argmax(axis=1) + 1, statistics.shape[1])
    return depths


def calibrate(statistics: np.ndarray, budget: float) -> float:
    """The threshold whose mean exit depth is nearest to `budget`.

    The mean depth falls as the threshold rises, and changes only at values that the running minimum takes; the
    threshold lies half-way between two of them, so that rounding does not move an example across it.
    """
    ceiling = statistics.shape[1]
    if not 1 <= budget <= ceiling:
        raise UserError(f"a mean budget of {budget:g} loops is not between 1 and the ceiling of {ceiling}")
    values = np.unique(np.minimum.accumulate(statistics, axis=1))
    cuts = np.concatenate([[values[0] / 2 - 1e-30], (values[1:] + values[:-1]) / 2, [values[-1] * 2 + 1e-30]])

    def mean_depth(cut: int) -> float:
        return float(exit_depths(statistics, cuts[cut]).mean())

    low, high = 0, len(cuts) - 1  # mean_depth(low) >= budget >= mean_depth(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if mean_depth(middle) >= budget else (low, middle)
    best = min((low, high), key=lambda cut: abs(mean_depth(cut) - budget))
    if abs(mean_depth(best) - budget) > BUDGET_TOLERANCE:
        raise UnreachableBudget(
            f"no threshold gives a mean of {budget:g} loops: the nearest reachable means are "
            f"{mean_depth(high):.1f} and {mean_depth(low):.1f}; choose a budget near one of them"
        )
    return float(cuts[best])


def calibrate_quality(found: Trace, percent: float) -> float:
    """The threshold with the fewest loops whose perplexity is at most `percent` above that of the best fixed depth."""
    best = float(found.nll.sum(axis=0).min()) / found.tokens
    allowed = best * (1 + ROUNDING) + float(np.log1p(percent / 100))
    good: list[tuple[float, float]] = []
    quantiles = np.quantile(found.statistics, np.linspace(0, 1, QUALITY_CUTS))
    for cut in (np.nextafter(quantiles[0], -np.inf), *quantiles):  # with the first nobody stops early
        depths = exit_depths(found.statistics, cut)
        nll = np.take_along_axis(found.nll, depths[:, None] - 1, axis=1).sum() / found.tokens
        if nll <= allowed:
            good.append((float(depths.mean()), float(cut)))
    if not good:
        raise UserError(f"no threshold stays within {percent:g} % of the best perplexity; allow more")
    return min(good)[1]
