"""Adaptive depth at a given threshold: the paper's full-trace accounting, and real early exit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from scse.evaluation.perplexity import windows
from scse.evaluation.rules import ExitRule, largest
from scse.model import LoopedLM, State, unroll
from scse.progress import Meter


@dataclass(frozen=True)
class AdaptiveResult:
    """`depths` are the loops each example took; nll is token-weighted."""

    depths: np.ndarray
    nll: float
    tokens: int
    seconds: float

    @property
    def mean_depth(self) -> float:
        return float(self.depths.mean())

    @property
    def ppl(self) -> float:
        return float(np.exp(self.nll))

    def histogram(self, ceiling: int) -> list[int]:
        """How many examples stopped after 1, 2, …, ceiling loops."""
        return [int(count) for count in np.bincount(self.depths, minlength=ceiling + 1)[1:]]


@torch.no_grad()
def offline(
    model: LoopedLM,
    tokens: np.ndarray,
    rule: ExitRule,
    thresholds: Sequence[float],
    ceiling: int,
    batch: int,
    limit: int | None,
    meter: Meter,
) -> list[AdaptiveResult]:
    """The paper's accounting: everything is unrolled to the ceiling, and each example is read where it would stop.

    All thresholds share one unroll, whose time is that of each result.
    """
    begin = time.perf_counter()
    depths: list[list[np.ndarray]] = [[] for _ in thresholds]
    sums = np.zeros(len(thresholds))
    count = 0
    for inputs, targets in windows(tokens, model.config.shape.context, batch, limit):
        stopped = np.zeros((len(thresholds), len(inputs)), dtype=np.int64)
        before: Tensor | None = None
        for state in islice(model.unroll(inputs), ceiling + 1):
            after = state.hidden
            if before is not None:
                moved = largest(rule.statistic(model, before, after)).double().numpy()
                for k, threshold in enumerate(thresholds):
                    here = (stopped[k] == 0) & ((moved <= threshold) | (state.t == ceiling))
                    stopped[k][here] = state.t
                    sums[k] += _nll(model, after, targets, torch.from_numpy(here)).sum()
            before = after
        for k, where in enumerate(stopped):
            depths[k].append(where)
        count += targets.numel()
        meter.advance(targets.numel())
    seconds = time.perf_counter() - begin
    return [
        AdaptiveResult(np.concatenate(found), total / count, count, seconds)
        for found, total in zip(depths, sums, strict=True)
    ]


@torch.no_grad()
def online(
    model: LoopedLM,
    tokens: np.ndarray,
    rule: ExitRule,
    threshold: float,
    ceiling: int,
    batch: int,
    limit: int | None,
    meter: Meter,
) -> AdaptiveResult:
    """Real early exit: an example leaves the batch when it stops, and a waiting one takes its place.

    Where the map looks at the step, the rows of a batch must move in step; there the batch only shrinks.
    """
    begin = time.perf_counter()
    depths: list[np.ndarray] = []
    total, count = 0.0, 0
    for inputs, targets in _same_length(tokens, model.config.shape.context, limit):
        queue = _Queue(model, inputs, targets, batch, meter)
        while queue.waiting:
            queue.work_off(rule, threshold, ceiling)
        depths.append(queue.depths)
        total += queue.nll
        count += targets.numel()
    return AdaptiveResult(np.concatenate(depths), total / count, count, time.perf_counter() - begin)


class _Queue:
    """Examples of one length, worked off through the slots of a batch."""

    def __init__(self, model: LoopedLM, inputs: Tensor, targets: Tensor, slots: int, meter: Meter) -> None:
        self.model, self.inputs, self.targets, self.slots, self.meter = model, inputs, targets, slots, meter
        self.next = 0
        self.depths = np.zeros(len(inputs), dtype=np.int64)
        self.nll = 0.0

    @property
    def waiting(self) -> int:
        return len(self.inputs) - self.next

    def take(self, count: int) -> Tensor:
        """The numbers of the next examples."""
        first, self.next = self.next, min(self.next + count, len(self.inputs))
        return torch.arange(first, self.next)

    def work_off(self, rule: ExitRule, threshold: float, ceiling: int) -> None:
        """Fill the slots, and keep them filled until no example is left in them."""
        recurrence = self.model.recurrence
        who = self.take(self.slots)
        taken = torch.zeros(len(who), dtype=torch.int64)
        frame = recurrence.begin(self.model.embed(self.inputs[who]))
        # A copy, because rows are overwritten in place and a frame's tensors may share storage with its start.
        states = unroll(recurrence, frame, start=frame.start.clone())
        state = next(states)
        while len(who):
            before = state.hidden
            state = states.send(state)
            after = state.hidden
            taken += 1
            done = (largest(rule.statistic(self.model, before, after)) <= threshold) | (taken >= ceiling)
            if done.any():
                self._finish(who[done], taken[done], after[done])
                state, who, taken = self._replace(state, who, taken, done)

    def _finish(self, who: Tensor, taken: Tensor, hidden: Tensor) -> None:
        self.depths[who.numpy()] = taken.numpy()
        losses = self.model.token_nll(hidden, self.targets[who])
        self.nll += losses.sum(dtype=torch.float64).item()
        self.meter.advance(losses.numel())

    def _replace(self, state: State, who: Tensor, taken: Tensor, done: Tensor) -> tuple[State, Tensor, Tensor]:
        """Waiting examples take the places of finished ones; places that stay empty are dropped."""
        recurrence = self.model.recurrence
        free = done.nonzero().flatten()
        fresh = self.take(0 if recurrence.step_dependent else len(free))
        if len(fresh):
            rows = free[: len(fresh)]
            frame = recurrence.begin(self.model.embed(self.inputs[fresh]))
            state.frame.overwrite(rows, frame)
            state.z.index_copy_(0, rows, frame.start)
            who[rows], taken[rows] = fresh, 0
        if len(fresh) == len(free):
            return state, who, taken
        keep = torch.ones(len(who), dtype=torch.bool)
        keep[free[len(fresh) :]] = False
        return state.rows(keep), who[keep], taken[keep]


def _nll(model: LoopedLM, hidden: Tensor, targets: Tensor, rows: Tensor) -> np.ndarray:
    if not rows.any():
        return np.zeros(0)
    return model.token_nll(hidden[rows], targets[rows]).double().numpy()


def _same_length(tokens: np.ndarray, context: int, limit: int | None) -> list[tuple[Tensor, Tensor]]:
    """All full windows together, and the last, shorter one by itself."""
    parts = list(windows(tokens, context, 1, limit))
    full = [part for part in parts if part[0].shape[1] == context]
    groups = [full] if full else []
    groups += [[part] for part in parts if part[0].shape[1] != context]
    return [(torch.cat([i for i, _ in group]), torch.cat([t for _, t in group])) for group in groups]
