"""The slots of a recurrence: one base class each, which says what a unit in that slot is given and must return.

A unit of your own derives from the class of its slot. What a class claims about its units (`keeps_zero`, `normalises`,
…) is false unless a unit says otherwise; the laws hold a unit to what it says.

Shapes: B batch, L positions, d width. `t` counts the steps already taken, from 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor

from scse.nn import Block, apply_layers, remember_layers
from scse.nn.block import Modulation, Pasts, lets_compile
from scse.recurrence.base import Carried, Coordinates, Frame, LoopMemory, Unit, by_layer


class Start(Unit, ABC):
    """e -> h_0"""

    @abstractmethod
    def forward(self, e: Tensor, positions: Tensor | None = None) -> Tensor:
        """h_0 [B, L, d] of e at its positions [B, L], which are 0 … L−1 unless given."""


class Anchor(Unit, ABC):
    """(e, h_0) -> h*, or None where there is nothing to measure from"""

    @abstractmethod
    def forward(self, e: Tensor, start: Tensor) -> Tensor | None: ...


class Drive(Unit, ABC):
    """z -> x_t, what the core sees. What depends on the input alone is prepared once."""

    keeps_zero: ClassVar[bool] = False  # whether a zero state gives a zero input, exactly

    def prepare(self, e: Tensor, hidden_anchor: Tensor | None) -> Tensor | None:
        return None

    @abstractmethod
    def forward(self, t: int, z: Tensor, prepared: Tensor | None) -> Tensor: ...


class Core(Unit, ABC):
    """x -> B(x) = M(x) − x, with M the layers that a step applies."""

    trained_depth: int | None = None  # the one depth it is trained at; None: sampled depths
    applied: Callable[..., Tensor] = staticmethod(apply_layers)  # or what it was compiled to
    carried: Carried = Carried()

    @abstractmethod
    def layers(self, t: int) -> list[Block]:
        """The layers of step t; none where its update is zero."""

    @abstractmethod
    def applications(self, loops: float) -> float:
        """How many steps of `loops` apply a core."""

    def modulations(self, t: int) -> list[Modulation] | None:
        """What conditions each layer at step t."""
        return None

    def forward(self, t: int, x: Tensor, past: Pasts | None = None, values: Tensor | None = None) -> Tensor:
        layers = self.layers(t)
        for block in layers:
            block.loop = t
        applied = self.applied if lets_compile(past) else apply_layers
        return applied(layers, x, past, self.modulations(t), by_layer(values, layers))

    def remember(self, t: int, x: Tensor, past: Pasts, values: Tensor | None = None) -> None:
        """Leave in the past what later positions need of x at step t."""
        if layers := self.layers(t):
            remember_layers(layers, x, past, self.modulations(t), by_layer(values, layers))


class Update(Unit, ABC):
    """z -> (x_t, u_t): what the core saw, and what it answers."""

    bodies: ClassVar[int] = 1  # how often it applies the core
    cancels_at_anchor: ClassVar[bool] = False

    @abstractmethod
    def forward(
        self, core: Core, drive: Drive, t: int, z: Tensor, frame: Frame, memory: LoopMemory | None = None
    ) -> tuple[Tensor, Tensor]: ...

    @abstractmethod
    def remember(self, core: Core, drive: Drive, t: int, z: Tensor, frame: Frame, memory: LoopMemory) -> None:
        """Leave in the memory what later positions need of a state that rests at z."""

    @staticmethod
    def seen(drive: Drive, t: int, z: Tensor, frame: Frame) -> Tensor:
        """x_t(z), in the type of the state: what moves through layers and loops is not rounded as products are."""
        x: Tensor = drive(t, z, frame.drive)
        return x.to(z.dtype)

    @staticmethod
    def body(core: Core, t: int, x: Tensor, frame: Frame, memory: LoopMemory | None, number: int) -> Tensor:
        """B(x), the step's `number`-th application of the core."""
        past = None if memory is None else memory.past(number)
        values = frame.core_values
        # A core of somebody's own need not know of value embeddings where the shape has none.
        update: Tensor = core(t, x, past) if values is None else core(t, x, past, values)
        return update


class Gain(Unit, ABC):
    """(z, u) -> q, how much of the core's answer is taken"""

    @abstractmethod
    def forward(self, z: Tensor, u: Tensor) -> Tensor: ...


class Mask(Unit, ABC):
    """q -> q̄, where nothing is to be taken zero"""

    zeroes_at_anchor: ClassVar[bool] = False

    @abstractmethod
    def forward(
        self, coordinates: Coordinates, z: Tensor, frame: Frame, q: Tensor, memory: LoopMemory | None = None
    ) -> Tensor: ...

    def remember(self, coordinates: Coordinates, z: Tensor, frame: Frame, memory: LoopMemory) -> None:
        """Leave in the memory what the mask of later positions needs of a state that rests at z."""


class Keep(Unit, ABC):
    """(z, x) -> what the update is added to"""

    @abstractmethod
    def forward(self, z: Tensor, x: Tensor) -> Tensor: ...


class Reset(Unit, ABC):
    """What happens to the new state z' after step t"""

    normalises: ClassVar[bool] = False  # whether every new state has been through a learned norm

    @abstractmethod
    def forward(self, t: int, z: Tensor) -> Tensor: ...


class Halting(Unit, ABC):
    """(z, z') -> the next state: which positions move"""

    @abstractmethod
    def forward(self, z: Tensor, new: Tensor) -> Tensor: ...

    def spent(self, z: Tensor) -> Tensor | None:
        """The halting probability that each position has spent [B, L]; None where there is none."""
        return None

    @property
    def spends(self) -> bool:
        """Whether there are halting probabilities."""
        return type(self).spent is not Halting.spent


class Read(Unit, ABC):
    """h -> y, what the coda, or the norm before the head, takes"""

    @abstractmethod
    def forward(self, h: Tensor) -> Tensor: ...
