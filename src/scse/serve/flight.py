"""Rows that take their loops together: as many new positions each, at depths and with exit rules of their own.

Shapes: R rows, L new positions of each, d width.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Several
from copy import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from scse.evaluation.rules import NO_PAST, ExitRule
from scse.model import LoopedLM, State
from scse.recurrence.base import Frame, Rows
from scse.serve.pages import PagedCache, PagedView, Places
from scse.serve.sequence import Sequence

log = logging.getLogger("scse.serve")


@dataclass
class Landed:
    """Rows that are done with their loops, in their last states; `taken` [R, L] are the loops of each position."""

    sequences: list[Sequence]
    state: State
    taken: Tensor

    def keep(self, rows: list[int]) -> Landed:
        chosen = chosen_of(rows, self.taken.device)
        return Landed([self.sequences[row] for row in rows], self.state.rows(chosen), self.taken[chosen])

    def outputs(self, model: LoopedLM) -> Tensor:
        """Leave the states for later positions to see, and return what the head takes of them [R, L, d]."""
        self.state.rest()
        assert self.state.memory is not None
        return model.outputs(self.state.hidden, self.state.memory.coda())


def chosen_of(rows: Several[int], device: torch.device) -> Rows:
    """Rows by their numbers, in order. Those that follow each other are a slice, which copies nothing."""
    if rows and rows[-1] - rows[0] == len(rows) - 1:
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, dtype=torch.long, device=device)


def _checked(statistic: Tensor, state: State) -> Tensor:
    """A number for each position: of another shape, rows could decide for each other."""
    if statistic.shape != state.z.shape[:2]:
        raise ValueError(f"the statistic has the shape {tuple(statistic.shape)} and not {tuple(state.z.shape[:2])}")
    return statistic


def gathered(all_landed: Several[Landed]) -> Landed:
    """All of them as one. Where the recurrence looks at t, they must have landed after equally many loops."""
    if len(all_landed) == 1:
        return all_landed[0]
    return Landed(
        [row for landed in all_landed for row in landed.sequences],
        beside([landed.state for landed in all_landed]),
        torch.cat([landed.taken for landed in all_landed]),
    )


def beside(states: Several[State]) -> State:
    """The rows of several states, in this order."""
    views = [state.memory for state in states if isinstance(state.memory, PagedView)]
    frame = Frame.beside([state.frame for state in states])
    return replace(states[0], z=torch.cat([state.z for state in states]), frame=frame, memory=PagedView.beside(views))


class Flight:
    """`depths` are the loops that rows have taken, `caps` those after which they stop whatever their rule says.

    Where rows have several new positions, `moving` and `taken` [R, L] tell these apart.
    """

    def __init__(self, model: LoopedLM, cache: PagedCache, sequences: Several[Sequence], count: int) -> None:
        """The next `count` tokens of each sequence, before their first loop."""
        self.model, self.sequences, self.count = model, list(sequences), count
        device = model.tokens.weight.device
        ids = torch.tensor([row.chunk(count) for row in sequences], device=device)
        numbers = torch.tensor([(row.lane, row.settled, 0, row.wanted.loops) for row in sequences], device=device)
        lanes, begins, depths, most = numbers.T.contiguous()
        self.state = next(model.unroll(ids, memory=PagedView(cache, Places(lanes, begins, count), depths, most)))
        self.depths, self.caps = [0] * len(ids), [row.cap for row in sequences]
        self.moving = torch.ones(ids.shape, dtype=torch.bool, device=device)
        self.taken = torch.zeros(ids.shape, dtype=torch.long, device=device)
        self.lost: list[Sequence] = []  # rows that have left because their rule raised an error
        self._sort_by_rule()

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def view(self) -> PagedView:
        assert isinstance(self.state.memory, PagedView)
        return self.state.memory

    def join(self, other: Flight) -> None:
        """Take in the rows of another flight."""
        self.state = beside([self.state, other.state])
        self.sequences += other.sequences
        self.depths += other.depths
        self.caps += other.caps
        if self.count > 1:
            self.moving = torch.cat([self.moving, other.moving])
            self.taken = torch.cat([self.taken, other.taken])
        self._sort_by_rule()

    def keep(self, rows: list[int]) -> None:
        """Go on with these rows alone."""
        if len(rows) == len(self):
            return
        chosen = chosen_of(rows, self.taken.device)
        self.sequences = [self.sequences[row] for row in rows]
        self.depths, self.caps = [self.depths[row] for row in rows], [self.caps[row] for row in rows]
        if not rows:
            return
        self.state = self.state.rows(chosen)
        if self.count > 1:
            self.moving, self.taken = self.moving[chosen], self.taken[chosen]
        self._sort_by_rule()

    def split(self, count: int) -> Flight:
        """The first rows as a flight of their own; the others stay."""
        first = copy(self)
        first.keep(list(range(count)))
        self.keep(list(range(count, len(self))))
        return first

    def advance(self) -> Landed | None:
        """One more loop for every row; those that are done leave, and those whose rule cannot say whether they are."""
        before, view = self.state, self.view
        after, deeper = before.step(), view.at(view.depths + 1)
        self.state = State(after.t, after.z, after.frame, after.recurrence, deeper)
        self.depths = [depth + 1 for depth in self.depths]
        done = [depth >= cap for depth, cap in zip(self.depths, self.caps, strict=True)]
        if self.count > 1:
            self.taken += self.moving
        lost = self._apply_rules(before, done) if self._rules else set()
        if not (lost or any(done)):
            return None
        leaving = [row for row, left in enumerate(done) if left and row not in lost]
        landed = self._land(leaving) if leaving else None
        self.lost = [*self.lost, *(self.sequences[row] for row in lost)]
        self.keep([row for row, left in enumerate(done) if not left and row not in lost])
        return landed

    def _land(self, rows: list[int]) -> Landed:
        if self.count == 1:  # then a row's loops are its only position's
            self.taken = torch.tensor(self.depths, device=self.taken.device)[:, None]
        whole = Landed(self.sequences, self.state, self.taken)
        return whole if len(rows) == len(self) else whole.keep(rows)

    def _apply_rules(self, before: State, done: list[bool]) -> set[int]:
        """Mark the rows whose rule says that they are done; return those whose rule raised an error."""
        lost: set[int] = set()
        if self.count > 1:  # a position that has stopped keeps its state while its neighbours move
            self.state = replace(self.state, z=torch.where(self.moving[..., None], self.state.z, before.z))
        for rule, (places, rows, thresholds) in self._rules.items():
            old, new = (before, self.state) if rows is None else (before.rows(rows), self.state.rows(rows))
            assert isinstance(new.memory, PagedView)
            codas = new.memory.codas() if self.model.coda else NO_PAST
            try:
                moving = _checked(rule.statistic(self.model, old.hidden, new.hidden, codas), new) > thresholds
            except Exception:  # a rule may be a guest's, and others share the batch
                log.exception("the exit rule '%s' failed; the sequences that use it end", rule.name)
                lost.update(places)
                continue
            if self.count > 1:
                chosen = slice(None) if rows is None else rows
                self.moving[chosen] &= moving
                moving = self.moving[chosen]
            for place, moves in zip(places, moving.any(1).tolist(), strict=True):
                done[place] = done[place] or not moves
        return lost

    def _sort_by_rule(self) -> None:
        """{rule: the places of its rows, the same as a tensor [r] unless it is all of them, their thresholds [r, 1]}"""
        found: dict[ExitRule, list[int]] = {}
        for place, row in enumerate(self.sequences):
            if row.wanted.threshold is not None:
                found.setdefault(row.wanted.rule, []).append(place)
        like = self.state.z
        self._rules: dict[ExitRule, tuple[list[int], Tensor | None, Tensor]] = {}
        for rule, places in found.items():
            thresholds = [[self.sequences[place].wanted.threshold] for place in places]
            self._rules[rule] = (
                places,
                None if len(places) == len(self) else torch.tensor(places, device=like.device),
                torch.tensor(thresholds, dtype=like.dtype, device=like.device),
            )
