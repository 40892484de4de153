"""Exit per token: a token that moves little keeps its state, and tokens after it that go deeper see it as it stopped.

This accounts for loops, not time: the block still runs over all positions of an example while one of them moves.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from scse.data import Readable
from scse.devices import send, wide
from scse.evaluation.adaptive import AdaptiveResult
from scse.evaluation.calibration import BUDGET_TOLERANCE, UnreachableBudget
from scse.evaluation.perplexity import counted_targets, spread_windows, windows
from scse.evaluation.rules import ExitRule, Stopping
from scse.measure import clock, elapsed
from scse.model import LoopedLM, State
from scse.progress import SILENT, Meter

BISECTIONS = 14


@torch.no_grad()
def freeze_tokens(
    model: LoopedLM, ids: Tensor, rule: ExitRule, threshold: float, ceiling: int
) -> tuple[State, np.ndarray]:
    """The state in which every token rests where it stopped, and the loops each took [B, L]; `ids` are a host's."""
    (ids,) = model.place(ids)
    states = model.unroll(ids)
    state = next(states)
    active = torch.ones_like(ids, dtype=torch.bool)
    taken = torch.zeros_like(ids)
    while active.any() and state.t < ceiling:
        before = state
        moved = states.send(state)
        state = replace(moved, z=torch.where(active[..., None], moved.z, before.z))
        taken += active
        active &= rule.statistic(model, before.hidden, state.hidden).to(wide(model.device)) > threshold
    return state, taken.cpu().numpy()


def tokenwise(
    model: LoopedLM, tokens: Readable, stopping: Stopping, threshold: float, meter: Meter = SILENT
) -> AdaptiveResult:
    """Perplexity with exit per token; `depths` are those of all tokens."""
    begin = clock(model.device)
    depths, count = [], 0
    total = torch.zeros((), dtype=wide(model.device), device=model.device)
    for inputs, targets in windows(tokens, model.config.shape.context, stopping.batch, stopping.windows):
        state, taken = freeze_tokens(model, inputs, stopping.rule, threshold, stopping.ceiling)
        total += model.token_nll(state.hidden, send(targets, model.device)).sum(dtype=wide(model.device))
        depths.append(taken.ravel())
        count += counted_targets(targets)
        meter.advance(counted_targets(targets))
    return AdaptiveResult(np.concatenate(depths), total.item() / count, count, elapsed(begin, model.device))


def calibrate_tokens(model: LoopedLM, tokens: Readable, stopping: Stopping, budget: float, largest: float) -> float:
    """The threshold whose mean depth per token is nearest to `budget`, by bisection between 0 and `largest`.

    A frozen token changes what the others see, so the mean depth cannot be read off one trace.
    """

    def mean_depth(threshold: float) -> float:
        found = [
            freeze_tokens(model, inputs, stopping.rule, threshold, stopping.ceiling)[1].ravel()
            for inputs, _ in spread_windows(tokens, model.config.shape.context, stopping.batch, stopping.windows)
        ]
        return float(np.concatenate(found).mean())

    low, high = 0.0, largest
    best = min(((abs(mean_depth(side) - budget), side) for side in (low, high)), key=lambda pair: pair[0])
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        mean = mean_depth(middle)
        best = min(best, (abs(mean - budget), middle))
        low, high = (middle, high) if mean > budget else (low, middle)
    if best[0] > BUDGET_TOLERANCE:
        raise UnreachableBudget(f"no threshold gives a mean of {budget:g} loops per token; choose another budget")
    return best[1]
