"""What an unroll is given of a cache: the columns of its new positions, loop by loop, body by body, layer by layer.

Shapes: B rows, R rows at hand, L new positions, n positions so far, K key and value heads, k width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from scse.errors import UserError
from scse.generation.fixed import FixedColumn, FixedLayers, FixedLoop
from scse.recurrence import Recurrence
from scse.recurrence.base import Frame, Rows

if TYPE_CHECKING:
    from scse.generation.cache import KVCache


@dataclass(frozen=True)
class CacheView:
    """The columns `begin` … `end` of a cache, for all its rows or for those of `chosen`: a `Memory` of an unroll.

    One new column of all rows in a cache of fixed capacity is `fixed`; what asks for some of the rows leaves that.
    """

    cache: KVCache
    begin: int
    end: int
    chosen: Tensor | None = None
    fixed: FixedColumn | None = None

    @property
    def padding(self) -> Tensor:
        padding = self.cache.padding
        return padding if self.chosen is None else padding[self.chosen]

    @cached_property
    def positions(self) -> Tensor:
        """Of the new tokens, counted from each row's first [R, L]"""
        if self.fixed is not None:
            return self.fixed.positions
        return (self._columns() - self.padding[:, None]).clamp_min(0)

    @cached_property
    def real(self) -> Tensor:
        """Which of the new columns hold a token [R, L]"""
        if self.fixed is not None:
            return self.fixed.real
        return self._columns() >= self.padding[:, None]

    @property
    def single(self) -> bool:
        """Whether each row has one new position, behind all of its padding."""
        return self.end - self.begin == 1 and self.begin > 0

    @cached_property
    def visible(self) -> Tensor | None:
        """Which columns each new position may see [R, 1, L, n]; None: all of them."""
        if self.end - self.begin == 1 and not self.cache.padded:
            return None
        columns = torch.arange(self.end, device=self.padding.device)
        return visible(columns >= self.padding[:, None], self.begin)

    def prelude(self) -> LayersView | FixedLayers:
        return self._layers(self.cache.looped, self.cache.model.config.shape.prelude)

    def loop(self, t: int) -> LoopView | FixedLoop:
        if self.fixed is None:
            return LoopView(self, t)
        cache, each = self.cache, self.cache.layers
        first = cache.slot(t) * cache.bodies * each
        bodies = tuple(self.fixed.layers(first + body * each, each) for body in range(cache.bodies))
        return FixedLoop(bodies, cache.energies[t])

    def coda(self, t: int | None = None) -> LayersView | FixedLayers:
        shape = self.cache.model.config.shape
        last = self.cache.looped + shape.prelude
        if t is None:
            return self._layers(last, shape.coda)
        return LayersView(self, last + (1 + t) * shape.coda, shape.coda, traced=True)

    def rows(self, keep: Rows) -> CacheView:
        everyone = torch.arange(self.cache.batch, device=self.cache.keys.device) if self.chosen is None else self.chosen
        return replace(self, chosen=everyone[keep], fixed=None)

    def of_rows(self, tensor: Tensor, dim: int) -> Tensor:
        """The part of a cache's tensor that belongs to the rows at hand."""
        return tensor if self.chosen is None else tensor.index_select(dim, self.chosen)

    def rest(self, recurrence: Recurrence, t: int, z: Tensor, frame: Frame) -> None:
        cache = self.cache
        if cache.traced:
            for deeper in range(t + 1, cache.loops + 1):
                cache.model.outputs(recurrence.hidden(z, frame), self.coda(deeper))
        if t >= cache.loops:
            return
        if not recurrence.rests_unchanged:
            for deeper in range(t, cache.loops):
                recurrence.remember(deeper, z, frame, self.loop(deeper))
            return
        energies = self.of_rows(cache.energies, 1)[t].clone()
        recurrence.remember(t, z, frame, self.loop(t))
        added = self.of_rows(cache.energies, 1)[t] - energies
        self._repeat(t, added)

    def _repeat(self, t: int, added: Tensor) -> None:
        """Copy what loop t remembers of these positions to all deeper loops."""
        cache, each = self.cache, self.cache.bodies * self.cache.layers
        rows = slice(None) if self.chosen is None else self.chosen
        columns = slice(self.begin, self.end)
        source = cache.slot(t) * each
        targets = {cache.slot(deeper) for deeper in range(t + 1, cache.loops)} - {cache.slot(t)}
        for store in (cache.keys, cache.values):
            for part in range(each):
                known = store[source + part, rows, :, columns]
                for target in targets:
                    store[target * each + part, rows, :, columns] = known
        cache.energies[t + 1 :, rows] += added

    def _layers(self, first: int, count: int) -> LayersView | FixedLayers:
        return LayersView(self, first, count) if self.fixed is None else self.fixed.layers(first, count)

    def _columns(self) -> Tensor:
        return torch.arange(self.begin, self.end, device=self.cache.padding.device)[None]


def visible(real: Tensor, begin: int = 0) -> Tensor:
    """Which columns the positions from `begin` on may see, where `real` [R, n] marks tokens [R, 1, L, n]

    Padding sees itself, because a softmax over nothing is not a number; nobody looks at what comes of it.
    """
    seen = torch.arange(real.shape[1], device=real.device)
    own = seen[begin:, None]
    return ((seen <= own) & (real[:, None] | (seen == own)))[:, None]


@dataclass(frozen=True)
class LoopView:
    """One loop of a view: a `LoopMemory`. `written` are the slots that this step has filled."""

    view: CacheView
    t: int
    written: set[int] = field(default_factory=set)

    def past(self, body: int) -> LayersView:
        cache = self.view.cache
        first = (cache.slot(self.t) * cache.bodies + body) * cache.layers
        return LayersView(self.view, first, cache.layers, self.written)

    def energy(self, added: Tensor) -> Tensor:
        view = self.view
        new = added[:, 0] if view.single else (added * view.real).sum(1)
        sums = view.cache.energies[self.t]
        if view.chosen is None:
            return sums.add_(new)
        return sums.index_add_(0, view.chosen, new)[view.chosen]


@dataclass(frozen=True)
class LayersView:
    """The slots from `first` on, one for each of `count` layers: `Pasts`."""

    view: CacheView
    first: int
    count: int
    written: set[int] = field(default_factory=set)
    traced: bool = False

    def layer(self, number: int) -> SlotView:
        if number >= self.count:
            raise UserError(
                f"family '{self.view.cache.model.config.family}' asks for the past of layer {number}; its shape has "
                f"{self.count}; set core={number + 1}, or use no cache (use_cache=False in transformers)"
            )
        if self.traced:
            self.view.cache.trace_coda(self.view.begin)
        return SlotView(self.view, self.first + number, self.written)


@dataclass(frozen=True)
class SlotView:
    """One slot of a view: a `Past`."""

    view: CacheView
    slot: int
    written: set[int]

    @property
    def positions(self) -> Tensor:
        return self.view.positions

    def put(self, k: Tensor, v: Tensor) -> None:
        view = self.view
        if self.slot in self.written:
            family = view.cache.model.config.family
            raise UserError(
                f"family '{family}' writes one past twice in a step, so a cache would confuse its blocks; "
                "give each its own memory.past(n), and their number as the update's `bodies`, as Subtractive does, "
                "or use no cache (use_cache=False in transformers)"
            )
        self.written.add(self.slot)
        for store, new in ((view.cache.keys, k), (view.cache.values, v)):
            place = store.select(0, self.slot).narrow(2, view.begin, view.end - view.begin)
            if view.chosen is None:
                place.copy_(new)
            else:
                place.index_copy_(0, view.chosen, new.to(place.dtype))

    def seen(self) -> tuple[Tensor, Tensor, Tensor | None]:
        view = self.view
        keys, values = (
            view.of_rows(store.select(0, self.slot).narrow(2, 0, view.end), 0)
            for store in (view.cache.keys, view.cache.values)
        )
        return keys, values, view.visible
