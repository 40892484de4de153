"""Rows that take their loops together: as many new positions each, at depths and with exit rules of their own.

Shapes: R rows, L new positions of each, d width.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from scse.evaluation.rules import ExitRule
from scse.model import LoopedLM, State
from scse.serve.pages import PagedCache, PagedView, Places
from scse.serve.sequence import Sequence


@dataclass(frozen=True)
class Landed:
    """Rows that are done: what the head takes of them [R, L, d], and the loops each position took [R, L]."""

    sequences: list[Sequence]
    outputs: Tensor
    taken: Tensor


class Flight:
    """`moving` and `taken` are [R, L], `caps` the loops after which each row stops whatever its rule says [R]."""

    def __init__(self, model: LoopedLM, cache: PagedCache, sequences: Several[Sequence], count: int) -> None:
        """The next `count` tokens of each sequence, before their first loop."""
        self.model, self.sequences = model, list(sequences)
        device = model.tokens.weight.device
        ids = torch.tensor([row.chunk(count) for row in sequences], device=device)
        places = Places(
            torch.tensor([row.lane for row in sequences], device=device),
            torch.tensor([row.settled for row in sequences], device=device),
            count,
        )
        most = torch.tensor([row.wanted.loops for row in sequences], device=device)
        self.state = next(model.unroll(ids, memory=PagedView(cache, places, torch.zeros_like(most), most)))
        self.caps = torch.tensor([row.cap for row in sequences], device=device)
        self.moving = torch.ones(ids.shape, dtype=torch.bool, device=device)
        self.taken = torch.zeros(ids.shape, dtype=torch.long, device=device)
        self._sort_by_rule()

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def count(self) -> int:
        """New positions of each row."""
        return self.moving.shape[1]

    @property
    def view(self) -> PagedView:
        assert isinstance(self.state.memory, PagedView)
        return self.state.memory

    def join(self, other: Flight) -> None:
        """Take in the rows of another flight."""
        mine, its = self.state, other.state
        memory = replace(
            self.view,
            places=self.view.places.beside(other.view.places),
            depths=torch.cat([self.view.depths, other.view.depths]),
            most=torch.cat([self.view.most, other.view.most]),
        )
        self.state = replace(mine, z=torch.cat([mine.z, its.z]), frame=mine.frame.beside(its.frame), memory=memory)
        self.sequences += other.sequences
        self.caps = torch.cat([self.caps, other.caps])
        self.moving = torch.cat([self.moving, other.moving])
        self.taken = torch.cat([self.taken, other.taken])
        self._sort_by_rule()

    def keep(self, rows: list[int]) -> None:
        """Go on with these rows alone."""
        chosen = torch.tensor(rows, dtype=torch.long, device=self.caps.device)
        self.sequences = [self.sequences[row] for row in rows]
        self.state = self.state.rows(chosen)
        self.caps, self.moving, self.taken = self.caps[chosen], self.moving[chosen], self.taken[chosen]
        self._sort_by_rule()

    def advance(self) -> Landed | None:
        """One more loop for every row; those that are done leave."""
        before, view = self.state, self.view
        self.state = replace(before.step(), memory=view.at(view.depths + 1))
        self.taken += self.moving
        done = self.view.depths >= self.caps
        if self._rules:
            self._apply_rules(before)
            done |= ~self.moving.any(1)
        if not bool(done.any()):
            return None
        leaving = done.nonzero()[:, 0].tolist()
        landed = self._land(leaving)
        self.keep((~done).nonzero()[:, 0].tolist())
        return landed

    def _land(self, rows: list[int]) -> Landed:
        chosen = torch.tensor(rows, device=self.caps.device)
        state = self.state.rows(chosen)
        state.rest()
        assert state.memory is not None
        outputs = self.model.outputs(state.hidden, state.memory.coda())
        return Landed([self.sequences[row] for row in rows], outputs, self.taken[chosen])

    def _apply_rules(self, before: State) -> None:
        if self.count > 1:  # a position that has stopped keeps its state while its neighbours move
            self.state = replace(self.state, z=torch.where(self.moving[..., None], self.state.z, before.z))
        for rule, (rows, thresholds) in self._rules.items():
            old, new = before.rows(rows), self.state.rows(rows)
            moved = rule.statistic(self.model, old.hidden, new.hidden, self.view.rows(rows).codas())
            self.moving[rows] &= moved > thresholds

    def _sort_by_rule(self) -> None:
        """{rule: its rows [r] and their thresholds [r, 1]}"""
        found: dict[ExitRule, list[int]] = {}
        for place, row in enumerate(self.sequences):
            if row.wanted.threshold is not None:
                found.setdefault(row.wanted.rule, []).append(place)
        like = self.state.z
        self._rules: dict[ExitRule, tuple[Tensor, Tensor]] = {}
        for rule, rows in found.items():
            thresholds = [[self.sequences[row].wanted.threshold] for row in rows]
            self._rules[rule] = (
                torch.tensor(rows, device=like.device),
                torch.tensor(thresholds, dtype=like.dtype, device=like.device),
            )
