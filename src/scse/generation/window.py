"""A batch with padding in one piece, without a cache: what a `Memory` is when there is no past.

Shapes: B rows, L positions, H heads, k width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from scse.generation.views import visible
from scse.recurrence import Recurrence
from scse.recurrence.base import Frame, Rows


@dataclass(frozen=True)
class PaddedWindow:
    """Sequences of different lengths side by side; `real` [B, L] marks their tokens. Gradients pass through."""

    real: Tensor

    @property
    def positions(self) -> Tensor:
        return (self.real.long().cumsum(1) - 1).clamp_min(0)

    @cached_property
    def visible(self) -> Tensor:
        return visible(self.real)

    def prelude(self) -> PaddedLayers:
        return PaddedLayers(self)

    def loop(self, t: int) -> PaddedLoop:
        return PaddedLoop(self)

    def coda(self, t: int | None = None) -> PaddedLayers:
        return PaddedLayers(self)

    def rows(self, keep: Rows) -> PaddedWindow:
        return PaddedWindow(self.real[keep])

    def rest(self, recurrence: Recurrence, t: int, z: Tensor, frame: Frame) -> None:
        """Nothing comes after a window that would have to see it."""


@dataclass(frozen=True)
class PaddedLoop:
    window: PaddedWindow

    def past(self, body: int) -> PaddedLayers:
        return PaddedLayers(self.window)

    def energy(self, added: Tensor) -> Tensor:
        total: Tensor = (added * self.window.real).sum(1)
        return total


@dataclass(frozen=True)
class PaddedLayers:
    window: PaddedWindow

    def layer(self, number: int) -> PaddedPast:
        return PaddedPast(self.window)


class PaddedPast:
    """Holds the keys and values of one application of a block, for that application alone."""

    def __init__(self, window: PaddedWindow) -> None:
        self.window = window

    @property
    def positions(self) -> Tensor:
        return self.window.positions

    def put(self, k: Tensor, v: Tensor) -> None:
        self.k, self.v = k, v

    def seen(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.k, self.v, self.window.visible
