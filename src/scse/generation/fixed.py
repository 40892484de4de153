"""One new position at a time in a cache of fixed capacity: tensors alone, of shapes and at addresses that stay.

Nothing here knows the number of the position or of the loop, so that one compilation serves all of both, and what one
token did can be recorded and repeated for the next, as CUDA graphs do. The new column is written where a tensor says,
and attention reads all columns under a mask.

Shapes: B rows, K key and value heads, C columns, k width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class FixedPast:
    """One slot: a `Past`. `column` [1] is that of the new position, `visible` [B, 1, 1, C] what it may see."""

    keys: Tensor
    values: Tensor
    column: Tensor
    positions: Tensor
    visible: Tensor

    def put(self, k: Tensor, v: Tensor) -> None:
        self.keys.index_copy_(2, self.column, k.to(self.keys.dtype))
        self.values.index_copy_(2, self.column, v.to(self.values.dtype))

    def seen(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.keys, self.values, self.visible


@dataclass(frozen=True)
class FixedLayers:
    """A slot for each of some layers: `Pasts`."""

    slots: tuple[FixedPast, ...]
    fixed: ClassVar[bool] = True

    def layer(self, number: int) -> FixedPast:
        return self.slots[number]


@dataclass(frozen=True)
class FixedLoop:
    """One loop: a `LoopMemory`. `sums` [B] are its sums of squares."""

    bodies: tuple[FixedLayers, ...]
    sums: Tensor
    fixed: ClassVar[bool] = True

    def past(self, body: int) -> FixedLayers:
        return self.bodies[body]

    def energy(self, added: Tensor) -> Tensor:
        return self.sums.add_(added[:, 0])


class FixedColumn:
    """The newest column of a cache's tensors, wherever that is; made once for all tokens."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        _, rows, _, capacity, _ = keys.shape
        self.column = torch.zeros(1, dtype=torch.long, device=keys.device)
        self.columns = torch.arange(capacity, device=keys.device)
        self.positions = torch.zeros(rows, 1, dtype=torch.long, device=keys.device)
        self.visible = torch.zeros(rows, 1, 1, capacity, dtype=torch.bool, device=keys.device)
        self.real = torch.ones(rows, 1, dtype=torch.bool, device=keys.device)
        self.slots = [
            FixedPast(k, v, self.column, self.positions, self.visible)
            for k, v in zip(keys.unbind(), values.unbind(), strict=True)
        ]

    def move(self, column: int, padding: Tensor) -> None:
        """Go to a column that is behind the padding [B] of every row."""
        self.column.fill_(column)
        self.positions.copy_(self.column - padding[:, None])
        seen = (self.columns <= self.column) & (self.columns >= padding[:, None])
        self.visible.copy_(seen[:, None, None])

    def layers(self, first: int, count: int) -> FixedLayers:
        """The slots from `first` on, one for each of `count` layers."""
        return FixedLayers(tuple(self.slots[first : first + count]))
