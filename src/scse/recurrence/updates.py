"""The core (which layers a step applies) and the update formed from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn

from scse.config.model import MOST_LAYERS, Shape
from scse.errors import UserError
from scse.nn import Block, apply_layers, remember_layers
from scse.nn.block import Modulation, Pasts
from scse.recurrence.base import Frame, LoopMemory, Unit, anchor_of
from scse.recurrence.drives import Drive


class SharedCore(Unit):
    """The same L layers at every step: B(x) = M_L(x) − x. Trained at sampled depths."""

    trained_depth: int | None = None
    applied: Callable[..., Tensor] = staticmethod(apply_layers)  # or what it was compiled to

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        if shape.core == 1:
            self.block = Block(shape)  # the name that it has in all weights of one layer
        else:
            self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.core))

    def layers(self, t: int) -> list[Block]:
        """The layers of step t; none where its update is zero."""
        return [block for block in self.modules() if isinstance(block, Block)]

    def modulations(self, t: int) -> list[Modulation] | None:
        """What conditions each layer at step t."""
        return None

    def forward(self, t: int, x: Tensor, past: Pasts | None = None) -> Tensor:
        layers = self.layers(t)
        for block in layers:
            block.loop = t
        applied = self.applied if past is None else apply_layers
        return applied(layers, x, past, self.modulations(t))

    def remember(self, t: int, x: Tensor, past: Pasts) -> None:
        """Leave in the past what later positions need of x at step t."""
        if layers := self.layers(t):
            remember_layers(layers, x, past, self.modulations(t))

    def applications(self, loops: float) -> float:
        """How many steps of `loops` apply a core."""
        return loops


class UnsharedCore(SharedCore):
    """Its own layers at each of N steps; the depth saturates at N, where the update is zero. Trained at depth N."""

    step_dependent = True

    def __init__(self, shape: Shape, layers: int) -> None:
        Unit.__init__(self)
        if not 1 <= layers <= MOST_LAYERS:
            raise UserError(f"layers must be at least 1 and at most {MOST_LAYERS}, got {layers}")
        self.blocks = nn.ModuleList(Block(shape) for _ in range(layers * shape.core))
        self.each = shape.core
        self.trained_depth = layers

    def layers(self, t: int) -> list[Block]:
        return super().layers(t)[t * self.each : (t + 1) * self.each]

    def applications(self, loops: float) -> float:
        return min(loops, len(self.blocks) // self.each)


class Direct(Unit):
    """u = B(x_t(z))"""

    bodies: ClassVar[int] = 1
    cancels_at_anchor: ClassVar[bool] = False

    def forward(
        self, core: SharedCore, drive: Drive, t: int, z: Tensor, frame: Frame, memory: LoopMemory | None = None
    ) -> tuple[Tensor, Tensor]:
        """x_t(z), what the core sees, and u"""
        x: Tensor = drive(t, z, frame.drive)
        return x, self.body(core, t, x, memory, 0)

    def remember(self, core: SharedCore, drive: Drive, t: int, z: Tensor, frame: Frame, memory: LoopMemory) -> None:
        """Leave in the memory what later positions need of a state that rests at z."""
        core.remember(t, drive(t, z, frame.drive), memory.past(0))

    @staticmethod
    def body(core: SharedCore, t: int, x: Tensor, memory: LoopMemory | None, number: int) -> Tensor:
        """B(x), the step's `number`-th application of the core."""
        update: Tensor = core(t, x, None if memory is None else memory.past(number))
        return update


class Subtractive(Direct):
    """u = B(x_t(z)) − B(x_t(anchor)): what the anchor itself would produce is taken out of every step.

    The two calls draw their own dropout, as in the paper; without dropout they cancel exactly at the anchor.
    """

    bodies = 2
    cancels_at_anchor = True

    def forward(
        self, core: SharedCore, drive: Drive, t: int, z: Tensor, frame: Frame, memory: LoopMemory | None = None
    ) -> tuple[Tensor, Tensor]:
        at_anchor = self.body(core, t, drive(t, anchor_of(frame.anchor), frame.drive), memory, 1)
        x, u = super().forward(core, drive, t, z, frame, memory)
        return x, u - at_anchor

    def remember(self, core: SharedCore, drive: Drive, t: int, z: Tensor, frame: Frame, memory: LoopMemory) -> None:
        super().remember(core, drive, t, z, frame, memory)
        core.remember(t, drive(t, anchor_of(frame.anchor), frame.drive), memory.past(1))
