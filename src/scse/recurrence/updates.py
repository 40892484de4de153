"""The core (which block a step applies) and the update formed from it."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from scse.config import Shape
from scse.errors import UserError
from scse.nn import Block
from scse.nn.attention import Past
from scse.recurrence.base import Frame, LoopMemory, Unit, anchor_of
from scse.recurrence.drives import Drive

MOST_LAYERS = 1000


class SharedCore(Unit):
    """The same block at every step. Trained at sampled depths."""

    trained_depth: int | None = None

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.block = Block(shape)

    def forward(self, t: int, x: Tensor, past: Past | None = None) -> Tensor:
        self.block.loop = t
        update: Tensor = self.block(x, past)
        return update

    def remember(self, t: int, x: Tensor, past: Past) -> None:
        """Leave in the past what later positions need of x at step t."""
        self.block.remember(x, past)

    def applications(self, loops: int) -> int:
        """How many steps of `loops` apply a block."""
        return loops


class UnsharedCore(Unit):
    """Its own block at each of N steps; the depth saturates at N, where the update is zero. Trained at depth N."""

    step_dependent = True

    def __init__(self, shape: Shape, layers: int) -> None:
        super().__init__()
        if not 1 <= layers <= MOST_LAYERS:
            raise UserError(f"layers must be at least 1 and at most {MOST_LAYERS}, got {layers}")
        self.blocks = nn.ModuleList(Block(shape) for _ in range(layers))
        self.trained_depth = layers

    def forward(self, t: int, x: Tensor, past: Past | None = None) -> Tensor:
        if t >= len(self.blocks):
            return torch.zeros_like(x)
        block = self._at(t)
        block.loop = t
        update: Tensor = block(x, past)
        return update

    def remember(self, t: int, x: Tensor, past: Past) -> None:
        if t < len(self.blocks):
            self._at(t).remember(x, past)

    def _at(self, t: int) -> Block:
        block = self.blocks[t]
        assert isinstance(block, Block)
        return block

    def applications(self, loops: int) -> int:
        return min(loops, len(self.blocks))


Core = SharedCore | UnsharedCore


class Direct(Unit):
    """u = B(x_t(z))"""

    bodies: ClassVar[int] = 1
    cancels_at_anchor: ClassVar[bool] = False

    def forward(
        self, core: Core, drive: Drive, t: int, z: Tensor, frame: Frame, memory: LoopMemory | None = None
    ) -> Tensor:
        return self.body(core, drive, t, z, frame, memory, 0)

    def remember(self, core: Core, drive: Drive, t: int, z: Tensor, frame: Frame, memory: LoopMemory) -> None:
        """Leave in the memory what later positions need of a state that rests at z."""
        core.remember(t, drive(t, z, frame.drive), memory.past(0))

    @staticmethod
    def body(
        core: Core, drive: Drive, t: int, z: Tensor, frame: Frame, memory: LoopMemory | None, number: int
    ) -> Tensor:
        """B(x_t(z)), the step's `number`-th application of the block."""
        update: Tensor = core(t, drive(t, z, frame.drive), None if memory is None else memory.past(number))
        return update


class Subtractive(Direct):
    """u = B(x_t(z)) − B(x_t(anchor)): what the anchor itself would produce is taken out of every step.

    The two calls draw their own dropout, as in the paper; without dropout they cancel exactly at the anchor.
    """

    bodies = 2
    cancels_at_anchor = True

    def forward(
        self, core: Core, drive: Drive, t: int, z: Tensor, frame: Frame, memory: LoopMemory | None = None
    ) -> Tensor:
        at_anchor = self.body(core, drive, t, anchor_of(frame.anchor), frame, memory, 1)
        return self.body(core, drive, t, z, frame, memory, 0) - at_anchor

    def remember(self, core: Core, drive: Drive, t: int, z: Tensor, frame: Frame, memory: LoopMemory) -> None:
        super().remember(core, drive, t, z, frame, memory)
        core.remember(t, drive(t, anchor_of(frame.anchor), frame.drive), memory.past(1))
