"""The core (which layers a step applies) and the update formed from it."""

from __future__ import annotations

from torch import Tensor, nn

from scse.config.model import MOST_LAYERS, Shape
from scse.errors import UserError
from scse.nn import Block
from scse.nn.block import blocks_of
from scse.recurrence.base import Carried, Frame, LoopMemory, anchor_of
from scse.recurrence.slots import Core, Drive, Update


def core_block(shape: Shape, number: int) -> Block:
    """Layer `number` of a core."""
    return Block(shape, shape.valued(shape.prelude + number))


class SharedCore(Core):
    """The same L layers at every step: B(x) = M_L(x) − x. Trained at sampled depths."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.carried = Carried.of(shape)
        self.one = shape.core == 1
        if self.one:
            self.block = core_block(shape, 0)  # the name that it has in all weights of one layer
        else:
            self.blocks = nn.ModuleList(core_block(shape, number) for number in range(shape.core))

    def layers(self, t: int) -> list[Block]:
        return [self.block] if self.one else blocks_of(self.blocks)

    def applications(self, loops: float) -> float:
        return loops


class UnsharedCore(Core):
    """Its own layers at each of N steps; the depth saturates at N, where the update is zero. Trained at depth N."""

    step_dependent = True

    def __init__(self, shape: Shape, layers: int) -> None:
        super().__init__()
        if not 1 <= layers <= MOST_LAYERS:
            raise UserError(f"layers must be at least 1 and at most {MOST_LAYERS}, got {layers}")
        self.carried = Carried.of(shape)
        self.blocks = nn.ModuleList(core_block(shape, number % shape.core) for number in range(layers * shape.core))
        self.each = shape.core
        self.trained_depth = layers

    def layers(self, t: int) -> list[Block]:
        return blocks_of(self.blocks)[t * self.each : (t + 1) * self.each]

    def applications(self, loops: float) -> float:
        return min(loops, len(self.blocks) // self.each)


class Direct(Update):
    """u = B(x_t(z))"""

    def forward(
        self, core: Core, drive: Drive, t: int, z: Tensor, frame: Frame, memory: LoopMemory | None = None
    ) -> tuple[Tensor, Tensor]:
        x = self.seen(drive, t, z, frame)
        return x, self.body(core, t, x, frame, memory, 0)

    def remember(self, core: Core, drive: Drive, t: int, z: Tensor, frame: Frame, memory: LoopMemory) -> None:
        core.remember(t, self.seen(drive, t, z, frame), memory.past(0), frame.core_values)


class Subtractive(Direct):
    """u = B(x_t(z)) − B(x_t(anchor)): what the anchor itself would produce is taken out of every step.

    The two calls draw their own dropout, as in the paper; without dropout they cancel exactly at the anchor.
    """

    bodies = 2
    cancels_at_anchor = True

    def forward(
        self, core: Core, drive: Drive, t: int, z: Tensor, frame: Frame, memory: LoopMemory | None = None
    ) -> tuple[Tensor, Tensor]:
        at_anchor = self.body(core, t, self.seen(drive, t, anchor_of(frame.anchor), frame), frame, memory, 1)
        x, u = super().forward(core, drive, t, z, frame, memory)
        return x, u - at_anchor

    def remember(self, core: Core, drive: Drive, t: int, z: Tensor, frame: Frame, memory: LoopMemory) -> None:
        super().remember(core, drive, t, z, frame, memory)
        core.remember(t, self.seen(drive, t, anchor_of(frame.anchor), frame), memory.past(1), frame.core_values)
