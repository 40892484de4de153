"""Take some positions through the loops under a cache: fixed depth, depth per row, or exit per token.

Shapes: B rows, L new positions, d width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from scse.config.use import RULE
from scse.devices import send
from scse.errors import UserError
from scse.evaluation.rules import RULES, Codas, ExitRule
from scse.generation.views import CacheView
from scse.model import LoopedLM, State

PAPERS_RULE = RULES.find(RULE)


@dataclass(frozen=True)
class Depth:
    """How deep to go: at most `loops` (a number, or one per row), less where `threshold` stops a token earlier.

    A token stops after the first loop whose statistic, by default ‖h_{t+1} − h_t‖, is at most the threshold. It then
    rests: tokens after it that go deeper see it as it stopped.
    """

    loops: int | tuple[int, ...]
    threshold: float | None = None
    rule: ExitRule = PAPERS_RULE

    def __post_init__(self) -> None:
        if min(self._numbers, default=0) < 1:
            raise UserError(f"loops must be at least 1, got {min(self._numbers, default=0)}")
        if self.threshold is not None and not self.threshold >= 0:
            raise UserError(f"the threshold of early exit must not be negative, got {self.threshold}")

    @property
    def _numbers(self) -> tuple[int, ...]:
        return (self.loops,) if isinstance(self.loops, int) else self.loops

    @property
    def deepest(self) -> int:
        return max(self._numbers, default=0)

    def of(self, batch: int) -> tuple[int, ...]:
        """The most loops of each row"""
        if isinstance(self.loops, int):
            return (self.loops,) * batch
        if len(self.loops) != batch:
            raise UserError(f"{len(self.loops)} loop counts were given for {batch} rows; give one, or one per row")
        return self.loops

    def rows(self, keep: list[int]) -> Depth:
        """The depth of some rows."""
        return self if isinstance(self.loops, int) else replace(self, loops=tuple(self.loops[i] for i in keep))


@dataclass(frozen=True)
class Settled:
    """The hidden states that positions ended with [B, L, d], what the head takes of them [B, L, d], and the loops each
    took [B, L].

    A coda sees every position in the state in which it ended, however many loops that took.
    """

    hidden: Tensor
    outputs: Tensor
    taken: Tensor


@torch.no_grad()
def settle(model: LoopedLM, ids: Tensor, view: CacheView, depth: Depth) -> Settled:
    """Unroll the new positions until every row is done; rows leave the batch as they finish and cost nothing more.

    Later positions may take more loops, up to those of the cache, and see these as they ended. Unfinished rows are
    listed on the host: with a threshold each loop reads one result from the device, without one none.
    """
    most = depth.of(len(ids))
    states = model.unroll(ids, memory=view)
    state = next(states)
    if depth.threshold is None and len(set(most)) == 1:  # all rows leave together
        for _ in range(most[0]):
            state = states.send(state)
        if most[0] < view.cache.loops:
            state.rest()
        return Settled(state.hidden, model.outputs(state.hidden, view.coda()), view.real * most[0])
    hidden = torch.empty_like(state.hidden)
    taken = torch.zeros_like(ids)
    left = list(range(len(ids)))
    who, moving = torch.arange(len(ids), device=ids.device), view.real
    while left:
        before, state = state, states.send(state)
        taken[who] += moving
        rests = [False] * len(left)
        if depth.threshold is not None:
            state = replace(state, z=torch.where(moving[..., None], state.z, before.z))
            moved = depth.rule.statistic(model, before.hidden, state.hidden, _codas(state))
            moving = moving & (moved > depth.threshold)
            rests = (~moving.any(1)).tolist()
        done = [place for place, row in enumerate(left) if rests[place] or state.t >= most[row]]
        if not done:
            continue
        stay = [place for place in range(len(left)) if place not in set(done)]
        out = send(torch.tensor(done), ids.device)
        leaving = state.rows(out)
        hidden[who[out]] = leaving.hidden
        if depth.threshold is not None or state.t < view.cache.loops:
            leaving.rest()
        left = [left[place] for place in stay]
        if left:
            rows = send(torch.tensor(stay), ids.device)
            state, who, moving = state.rows(rows), who[rows], moving[rows]
    return Settled(hidden, model.outputs(hidden, view.coda()), taken)


def _codas(state: State) -> Codas:
    """What a coda has seen of earlier positions one loop ago and now."""
    assert state.memory is not None
    return state.memory.coda(state.t - 1), state.memory.coda(state.t)
