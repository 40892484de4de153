"""Adaptive depth at a given threshold: the paper's full-trace accounting, and real early exit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from scse.data import Readable
from scse.devices import send, wide
from scse.evaluation.perplexity import counted_targets, windows
from scse.evaluation.rules import Stopping
from scse.measure import clock, elapsed
from scse.model import LoopedLM, State, unroll
from scse.progress import SILENT, Meter
from scse.recurrence import Frame
from scse.runs.partial import Found, Partial, over_batches


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
    tokens: Readable,
    stopping: Stopping,
    thresholds: Sequence[float],
    meter: Meter = SILENT,
    partial: Partial | None = None,
) -> list[AdaptiveResult]:
    """The paper's accounting: everything is unrolled to the ceiling, and each example is read where it would stop.

    All thresholds share one unroll, whose time is that of each result. With a `partial`, one that was ended goes on
    where it was.
    """

    def one(batch: tuple[Tensor, Tensor]) -> Found:
        begin = clock(model.device)
        stopped, losses = _full_trace(model, *batch, stopping, np.array(thresholds))
        about = {"tokens": counted_targets(batch[1]), "seconds": elapsed(begin, model.device)}
        return {**about, "depths": stopped.tolist(), "nll": losses.sum(1).tolist()}

    texts = windows(tokens, model.config.shape.context, stopping.batch, stopping.windows)
    found = over_batches(texts, one, partial, lambda part: meter.advance(part["tokens"]))
    count, seconds = (sum(part[name] for part in found) for name in ("tokens", "seconds"))
    depths = np.concatenate([np.array(part["depths"]) for part in found], axis=1)
    sums = np.sum([part["nll"] for part in found], axis=0)
    return [AdaptiveResult(taken, total / count, count, seconds) for taken, total in zip(depths, sums, strict=True)]


def _full_trace(
    model: LoopedLM, inputs: Tensor, targets: Tensor, stopping: Stopping, thresholds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Where each example of a batch would stop, and its summed nll there, for each threshold [K, B].

    An example is read at the loops where some threshold stops it, and only there. Which these are is decided by the
    host, from one transfer per loop; the losses are fetched when all of them are there.
    """
    rule, ceiling = stopping.rule, stopping.ceiling
    stopped = np.zeros((len(thresholds), len(inputs)), dtype=np.int64)
    ids, wanted = model.place(inputs, targets)
    read: list[tuple[int, np.ndarray, Tensor]] = []
    before: Tensor | None = None
    for state in islice(model.unroll(ids), ceiling + 1):
        after = state.hidden
        if before is not None:
            moved = rule.of_examples(rule.statistic(model, before, after)).cpu().double().numpy()
            here = (stopped == 0) & ((moved <= thresholds[:, None]) | (state.t == ceiling))
            stopped[here] = state.t
            if here.any():
                rows = here.any(axis=0).nonzero()[0]
                who = send(torch.from_numpy(rows), model.device)
                losses = model.token_nll(after[who], wanted[who]).view(len(rows), -1)
                read.append((state.t, rows, losses.sum(1, dtype=wide(model.device))))
        before = after
    found = np.zeros(stopped.shape)
    for t, rows, losses in read:
        found[:, rows] += np.where(stopped[:, rows] == t, losses.cpu().double().numpy(), 0.0)
    return stopped, found


@torch.no_grad()
def online(
    model: LoopedLM, tokens: Readable, stopping: Stopping, threshold: float, meter: Meter = SILENT
) -> AdaptiveResult:
    """Real early exit: an example leaves the batch when it stops, and a waiting one takes its place.

    Where the map looks at the step, the rows of a batch must move in step; there the batch only shrinks.
    """
    begin = clock(model.device)
    depths: list[np.ndarray] = []
    total, count = 0.0, 0
    for inputs, targets in _same_length(tokens, model.config.shape.context, stopping.windows):
        queue = _Queue(model, inputs, targets, stopping.batch, meter)
        while queue.waiting:
            queue.work_off(stopping, threshold)
        depths.append(queue.depths)
        total += queue.nll.item()
        count += counted_targets(targets)
    return AdaptiveResult(np.concatenate(depths), total / count, count, elapsed(begin, model.device))


class _Queue:
    """Examples of one length, worked off through the slots of a batch.

    Around the loops work is done in bulk: waiting examples are begun a batch at a time, and finished ones wait for the
    vocabulary head until there is a batch of them. Who is in which slot, and for how long, the host knows; all it asks
    of the device in a loop is which examples are done.
    """

    def __init__(self, model: LoopedLM, inputs: Tensor, targets: Tensor, slots: int, meter: Meter) -> None:
        self.model, self.inputs, self.targets, self.slots, self.meter = model, inputs, targets, slots, meter
        self.next = 0
        self.begun = 0
        self.pool: Frame | None = None
        self.depths = np.zeros(len(inputs), dtype=np.int64)
        self.finished: list[tuple[Tensor, Tensor]] = []
        self.nll = torch.zeros((), dtype=wide(model.device), device=model.device)

    @property
    def waiting(self) -> int:
        return len(self.inputs) - self.next

    def take(self, count: int) -> tuple[Tensor, Frame] | None:
        """The numbers of up to `count` waiting examples and their frame; None when nobody waits."""
        if not self.waiting or not count:
            return None
        if self.pool is None or self.next == self.begun:
            self.begun = min(self.next + self.slots, len(self.inputs))
            (ids,) = self.model.place(self.inputs[self.next : self.begun])
            self.pool = self.model.recurrence.begin(self.model.embed(ids))
        first, self.next = self.next, min(self.next + count, self.begun)
        offset = self.begun - len(self.pool.start)
        who = torch.arange(first, self.next)
        return who, self.pool.rows(self._sent(who - offset))

    def _sent(self, rows: Tensor) -> Tensor:
        return send(rows, self.model.device)

    def work_off(self, stopping: Stopping, threshold: float) -> None:
        """Fill the slots, and keep them filled until no example is left in them."""
        rule, ceiling = stopping.rule, stopping.ceiling
        taken_in = self.take(self.slots)
        assert taken_in is not None
        who, frame = taken_in
        taken = torch.zeros(len(who), dtype=torch.int64)
        # A copy, because rows are overwritten in place and a frame's tensors may share storage with its start.
        states = unroll(self.model.recurrence, frame, start=frame.start.clone())
        state = next(states)
        hidden = state.hidden
        while len(who):
            before, state = hidden, states.send(state)
            hidden = state.hidden
            taken += 1
            moved = rule.of_examples(rule.statistic(self.model, before, hidden)).cpu().double()
            done = ((moved <= threshold) | (taken >= ceiling)).nonzero().flatten()
            if len(done):
                self._finish(who[done], taken[done], hidden[self._sent(done)])
                state, hidden, who, taken = self._replace(state, hidden, who, taken, done)
        self._read_out()

    def _finish(self, who: Tensor, taken: Tensor, hidden: Tensor) -> None:
        self.depths[who.numpy()] = taken.numpy()
        self.finished.append((who, hidden))
        if sum(len(numbers) for numbers, _ in self.finished) >= self.slots:
            self._read_out()

    def _read_out(self) -> None:
        """The losses of everything that has finished since the last time."""
        if self.finished:
            who, hidden = (torch.cat(parts) for parts in zip(*self.finished, strict=True))
            targets = self.targets[who]
            losses = self.model.token_nll(hidden, self._sent(targets))
            self.nll += losses.sum(dtype=wide(self.model.device))
            self.meter.advance(counted_targets(targets))
            self.finished = []

    def _replace(
        self, state: State, hidden: Tensor, who: Tensor, taken: Tensor, free: Tensor
    ) -> tuple[State, Tensor, Tensor, Tensor]:
        """Waiting examples take the places of finished ones; places that stay empty are dropped."""
        recurrence = self.model.recurrence
        while not recurrence.step_dependent and (fresh := self.take(len(free))):
            numbers, frame = fresh
            rows, free = free[: len(numbers)], free[len(numbers) :]
            who[rows], taken[rows] = numbers, 0
            rows = self._sent(rows)
            state.frame.overwrite(rows, frame)
            state.z.index_copy_(0, rows, frame.start)
            hidden.index_copy_(0, rows, recurrence.hidden(frame.start, frame))
        if not len(free):
            return state, hidden, who, taken
        keep = torch.ones(len(who), dtype=torch.bool)
        keep[free] = False
        left = keep.nonzero().flatten()
        rows = self._sent(left)
        return state.rows(rows), hidden[rows], who[left], taken[left]


def _same_length(tokens: Readable, context: int, limit: int | None) -> list[tuple[Tensor, Tensor]]:
    """All full windows together, and the last, shorter one by itself."""
    parts = list(windows(tokens, context, 1, limit))
    full = [part for part in parts if part[0].shape[1] == context]
    groups = [full] if full else []
    groups += [[part] for part in parts if part[0].shape[1] != context]
    return [(torch.cat([i for i, _ in group]), torch.cat([t for _, t in group])) for group in groups]
