"""Take some positions through the loops under a cache: fixed depth, depth per row, or exit per token.

Shapes: B rows, L new positions, d width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from scse.errors import UserError
from scse.evaluation.rules import RULES, Codas, ExitRule
from scse.generation.cache import CacheView
from scse.model import LoopedLM, State

PAPERS_RULE = RULES.find("update")


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

    def of(self, batch: int) -> Tensor:
        """The most loops of each row [B]"""
        if isinstance(self.loops, int):
            return torch.full((batch,), self.loops)
        if len(self.loops) != batch:
            raise UserError(f"{len(self.loops)} loop counts were given for {batch} rows; give one, or one per row")
        return torch.tensor(self.loops)

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
    """Unroll the new positions until every row is done; rows leave the batch as they finish and cost nothing more."""
    most = depth.of(len(ids)).to(ids.device)
    states = model.unroll(ids, memory=view)
    state = next(states)
    hidden = torch.empty_like(state.hidden)
    taken = torch.zeros(ids.shape, dtype=torch.long, device=ids.device)
    who = torch.arange(len(ids), device=ids.device)
    moving = view.real
    while len(who):
        before, state = state, states.send(state)
        taken[who] += moving
        if depth.threshold is not None:
            state = replace(state, z=torch.where(moving[..., None], state.z, before.z))
            moved = depth.rule.statistic(model, before.hidden, state.hidden, _codas(state))
            moving = moving & (moved > depth.threshold)
        done = ~moving.any(1) | (state.t >= most[who])
        if not done.any():
            continue
        leaving = state.rows(done)
        hidden[who[done]] = leaving.hidden
        if depth.threshold is not None:
            leaving.rest()
        state, who, moving = state.rows(~done), who[~done], moving[~done]
    return Settled(hidden, model.outputs(hidden, view.coda()), taken)


def _codas(state: State) -> Codas:
    """What a coda has seen of earlier positions one loop ago and now."""
    assert state.memory is not None
    return state.memory.coda(state.t - 1), state.memory.coda(state.t)
