"""A recurrence: how the state moves from one loop to the next, composed from small units.

Shapes: B batch, L positions, d width. `t` counts the steps already taken, from 0.

A recurrence steps in its *native* coordinates z and states its anchor there. For deviation-native families the
anchor is the literal zero tensor, so "exactly zero" can be tested bit for bit, and nothing adds and subtracts the
anchor inside the loop. All diagnostics are written against `deviation_map` alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from scse.config.model import Shape
from scse.errors import UserError
from scse.nn.block import Block, Pasts

if TYPE_CHECKING:
    from scse.recurrence.recurrence import Recurrence


Rows = Tensor | slice  # of a batch: by number, by a mask, or some that follow each other, which copies nothing


@dataclass(frozen=True)
class Frame:
    """What one input fixes for its whole unroll, computed once before the loop.

    `embedding`, `hidden_anchor` are in hidden coordinates; `start`, `anchor` in native ones. `drive` is what the
    drive unit prepared from the input. Families without an anchor hold None. Where layers add embeddings of their
    tokens to their values, `core_values` are those of the core and `coda_values` those of the coda, as `Carried` says.
    """

    embedding: Tensor
    hidden_anchor: Tensor | None
    start: Tensor
    anchor: Tensor | None
    drive: Tensor | None
    core_values: Tensor | None = None
    coda_values: Tensor | None = None

    def rows(self, keep: Rows) -> Frame:
        """The frame of some rows of the batch."""
        return self._map(lambda tensor, _: tensor[keep], self)

    def overwrite(self, rows: Tensor, other: Frame) -> None:
        """Put the rows of another frame in the place of some of ours."""
        self._map(lambda tensor, new: tensor.index_copy_(0, rows, new), other)

    @staticmethod
    def beside(frames: Sequence[Frame]) -> Frame:
        """The rows of several frames, in this order."""
        joined: dict[str, Any] = {}
        for name in (f.name for f in fields(Frame)):
            parts = [getattr(frame, name) for frame in frames]
            joined[name] = None if parts[0] is None else torch.cat(parts)
        return Frame(**joined)

    def _map(self, change: Callable[[Tensor, Tensor], Tensor], other: Frame) -> Frame:
        changed: dict[str, Any] = {}
        for name in (f.name for f in fields(self)):
            mine = getattr(self, name)
            changed[name] = None if mine is None else change(mine, getattr(other, name))
        return Frame(**changed)


@dataclass(frozen=True)
class Carried:
    """Value embeddings travel behind a vector of width d: of core and coda behind e, of the coda behind h.

    There they are multiplied by 2⁻⁶⁰, which loses nothing in float32, float64 and bfloat16, and weighs nothing in the
    norms of states that exit rules and readers look at. In float16 nothing would be left of them, so that is refused.
    `core` and `coda` are how many numbers of each.
    """

    width: int = 0
    core: int = 0
    coda: int = 0

    WEIGHT: ClassVar[float] = 2.0**-60

    @classmethod
    def of(cls, shape: Shape) -> Carried:
        first, last = shape.prelude, shape.prelude + shape.core
        core, coda = (
            sum(map(shape.valued, numbers)) * shape.kv_width
            for numbers in (range(first, last), range(last, shape.layers))
        )
        return cls(shape.width, core, coda)

    @property
    def any(self) -> bool:
        return self.core + self.coda > 0

    def load(self, e: Tensor, values: Sequence[Tensor]) -> Tensor:
        """e with the values of core and coda behind it"""
        if not values:
            return e
        if e.dtype == torch.float16:
            raise UserError("value embeddings do not survive float16; load this model in bfloat16 or float32")
        return torch.cat([e, *(self.WEIGHT * value for value in values)], dim=-1)

    def embedding(self, loaded: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """e, the values of the core, and those of the coda, as they travel"""
        if not self.any:
            return loaded, None, None
        e, core, coda = loaded.split([self.width, self.core, self.coda], dim=-1)
        return e, core / self.WEIGHT if self.core else None, coda if self.coda else None

    def hidden(self, loaded: Tensor) -> tuple[Tensor, Tensor | None]:
        """h, and the values of the coda"""
        if not self.coda:
            return loaded, None
        h, coda = loaded.split([self.width, self.coda], dim=-1)
        return h, coda / self.WEIGHT


def by_layer(values: Tensor | None, layers: Sequence[Block]) -> list[Tensor | None] | None:
    """The values of some layers, one after another, for each of them that takes some."""
    if values is None or not any(layer.valued for layer in layers):
        return None
    parts = iter(values.chunk(sum(layer.valued for layer in layers), dim=-1))
    return [next(parts) if layer.valued else None for layer in layers]


class LoopMemory(Protocol):
    """What one loop remembers of the positions before the ones at hand."""

    def past(self, body: int) -> Pasts:
        """The keys and values that the loop's `body`-th application of the core has seen, layer by layer."""
        ...

    def energy(self, added: Tensor) -> Tensor:
        """Σ ‖Δ‖² over all positions so far, the new ones [B, L] included [B]."""
        ...


class Memory(Protocol):
    """What all loops remember, for the positions at hand: the rows of a batch, the columns after those seen."""

    @property
    def positions(self) -> Tensor:
        """Of the new tokens in their sequences [B, L]"""
        ...

    def prelude(self) -> Pasts: ...

    def loop(self, t: int) -> LoopMemory: ...

    def coda(self, t: int | None = None) -> Pasts:
        """What the coda has seen of the states in which positions ended or, with a t, of those after t loops."""
        ...

    def rows(self, keep: Rows) -> Memory:
        """The memory of some rows of the batch."""
        ...

    def rest(self, recurrence: Recurrence, t: int, z: Tensor, frame: Frame) -> None:
        """From loop t on these positions stay as they are, and are seen so by later ones that go deeper."""
        ...


class Unit(nn.Module):
    """A part of a recurrence. Units that look at `t` say so: their sequences must move in step."""

    step_dependent: ClassVar[bool] = False

    def start_values(self) -> None:
        """Set parameters that do not begin as drawn; called after all have been drawn."""


class Coordinates(Unit, ABC):
    """How native states z, hidden states h and deviations Δ = h − h* relate."""

    anchor_is_zero: ClassVar[bool] = False

    @abstractmethod
    def enter(self, h: Tensor, hidden_anchor: Tensor | None) -> Tensor:
        """h -> z"""

    @abstractmethod
    def native_anchor(self, hidden_anchor: Tensor | None) -> Tensor | None:
        """h* -> the anchor in native coordinates"""

    @abstractmethod
    def deviation(self, z: Tensor, frame: Frame) -> Tensor:
        """z -> Δ"""

    @abstractmethod
    def hidden(self, z: Tensor, frame: Frame) -> Tensor:
        """z -> h"""


def anchor_of(anchor: Tensor | None) -> Tensor:
    """The anchor, or the error that says this family has none."""
    if anchor is None:
        raise UserError(
            "this family has no anchor, so deviations from it do not exist (unshared layers, weighted states); "
            "choose another family"
        )
    return anchor
