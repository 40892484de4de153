"""A cache whose memory follows what is used: entries of one position each, handed out as loops are taken.

Shapes: R rows, L new positions of each, n the longest row so far, K key and value heads, k width of a head.

Rows stand at positions and depths of their own. A table says for every (lane, slot, position) which entry holds its
keys and values; a position that rests lets all deeper loops point to one entry, where the recurrence allows that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from scse.evaluation.rules import Codas
from scse.model import LoopedLM
from scse.recurrence import Recurrence
from scse.recurrence.base import Frame, Rows
from scse.serve.store import Store


@dataclass(frozen=True)
class Need:
    """The most entries a sequence can hold: of the loops, of the prelude, of the coda."""

    loops: int
    prelude: int
    coda: int


class PagedCache:
    """The stores of loops, prelude and coda, and the sums behind the zero-deviation mask, for so many lanes.

    A lane is the place of one running sequence. The coda's slot 0 holds the states in which positions ended, slot
    1 + t those after t loops, for exit rules that read predictions.
    """

    def __init__(self, model: LoopedLM, lanes: int, loops: int) -> None:
        shape = model.config.shape
        self.model, self.lanes, self.loops = model, lanes, loops
        self.bodies, self.layers = model.recurrence.bodies_per_step, shape.core
        self.rests_unchanged = model.recurrence.rests_unchanged
        self.looped = Store(model, self.bodies * self.layers, loops, lanes)
        self.prelude = Store(model, shape.prelude, 1, lanes)
        self.coda = Store(model, shape.coda, loops + 2, lanes)
        self.stores = [store for store in (self.looped, self.prelude, self.coda) if store.layers]
        weight = model.tokens.weight
        self.energies = torch.zeros(lanes, loops, dtype=weight.dtype, device=weight.device)
        self.traced = torch.zeros(lanes, dtype=torch.bool, device=weight.device)

    def need(self, positions: int, loops: int, traced: bool) -> Need:
        """What a sequence of so many positions can come to hold."""
        slots = 1 + (loops + 1 if traced else 0)
        shape = self.model.config.shape
        return Need(positions * loops, positions * bool(shape.prelude), positions * slots * bool(shape.coda))

    def need_bytes(self, need: Need) -> int:
        counts = (need.loops, need.prelude, need.coda)
        stores = (self.looped, self.prelude, self.coda)
        return sum(count * store.entry_bytes for count, store in zip(counts, stores, strict=True) if store.layers)

    def reserve(self, need: Need, sign: int = 1) -> None:
        self.looped.reserved += sign * need.loops
        self.prelude.reserved += sign * need.prelude
        self.coda.reserved += sign * need.coda

    @property
    def nbytes(self) -> int:
        """What is held for keys and values."""
        return sum(store.nbytes for store in self.stores)

    @property
    def used_bytes(self) -> int:
        """As much of it as sequences have filled."""
        return sum(store.used * store.entry_bytes for store in self.stores)

    def release(self, lane: int) -> None:
        for store in self.stores:
            store.release(lane)
        self.energies[lane] = 0
        self.traced[lane] = False

    def trim(self) -> None:
        for store in self.stores:
            store.trim()


@dataclass(frozen=True)
class Places:
    """Where the new positions of some rows stand: their lanes [R], their first columns [R], how many each has."""

    lanes: Tensor
    begins: Tensor
    count: int

    @cached_property
    def columns(self) -> Tensor:
        """[R, L]"""
        return self.begins[:, None] + torch.arange(self.count, device=self.begins.device)

    @cached_property
    def longest(self) -> int:
        return int(self.begins.max()) + self.count

    @cached_property
    def visible(self) -> Tensor | None:
        """Which columns each new position may see [R, 1, L, n]; None: all of them."""
        if self.count == 1 and bool((self.begins == self.begins[0]).all()):
            return None
        seen = torch.arange(self.longest, device=self.begins.device)
        return (seen <= self.columns[..., None])[:, None]

    def rows(self, keep: Rows) -> Places:
        return Places(self.lanes[keep], self.begins[keep], self.count)


@dataclass(frozen=True)
class PagedView:
    """A `Memory` of rows that have taken `depths` [R] loops, and may take `most` [R] at all.

    Where a method is given a t, the rows' own depths count: a recurrence that looks at t is only ever shown rows of
    one depth, and one that does not look cannot tell.
    """

    cache: PagedCache
    places: Places
    depths: Tensor
    most: Tensor

    @property
    def positions(self) -> Tensor:
        return self.places.columns

    def prelude(self) -> PagedLayers:
        return PagedLayers(self, Entries(self.places, self.cache.prelude, torch.zeros_like(self.depths)), 0)

    def loop(self, t: int) -> PagedLoop:
        return PagedLoop(self, self.depths)

    def coda(self, t: int | None = None) -> PagedLayers:
        slots = torch.zeros_like(self.depths) if t is None else 1 + self.depths
        return PagedLayers(self, Entries(self.places, self.cache.coda, slots), 0, traced=t is not None)

    def codas(self) -> Codas:
        """What the coda has seen of earlier positions one loop ago and now, for exit rules."""
        return self.at(self.depths - 1).coda(0), self.coda(0)

    @staticmethod
    def beside(views: Sequence[PagedView]) -> PagedView:
        """The rows of several views of one cache, with equally many new positions, in this order."""
        places = [view.places for view in views]
        lanes, begins = torch.cat([one.lanes for one in places]), torch.cat([one.begins for one in places])
        depths, most = torch.cat([view.depths for view in views]), torch.cat([view.most for view in views])
        return PagedView(views[0].cache, Places(lanes, begins, places[0].count), depths, most)

    def rows(self, keep: Rows) -> PagedView:
        return PagedView(self.cache, self.places.rows(keep), self.depths[keep], self.most[keep])

    def at(self, depths: Tensor) -> PagedView:
        """The same rows at other depths."""
        return PagedView(self.cache, self.places, depths, self.most)

    def rest(self, recurrence: Recurrence, t: int, z: Tensor, frame: Frame) -> None:
        """Rows that stopped before their deepest loop are seen as they are by later positions that go deeper."""
        self._rest_in_coda(recurrence, z, frame)
        for further in range(int((self.most - self.depths).max())):
            going = self.depths + further < self.most
            view, states, frames = self.at(self.depths + further), z, frame
            if not bool(going.all()):
                keep = going.nonzero().flatten()
                view, states, frames = view.rows(keep), z[keep], frame.rows(keep)
            before = view.energies()
            recurrence.remember(t + further, states, frames, view.loop(t + further))
            if self.cache.rests_unchanged:
                view._share(view.energies() - before)
                return

    def energies(self) -> Tensor:
        """The sums of squares so far of the loops at hand [R]"""
        return self.cache.energies[self.places.lanes, self.depths]

    def _share(self, added: Tensor) -> None:
        """Let all deeper loops point to what this one remembers, and add the same to their sums of squares."""
        lanes, loops = self.places.lanes, torch.arange(self.cache.loops, device=self.depths.device)
        deeper = (loops > self.depths[:, None]) & (loops < self.most[:, None])
        self.cache.looped.share(lanes, self.depths, deeper, self.places.columns)
        self.cache.energies.index_add_(0, lanes, torch.where(deeper, added[:, None], 0.0))

    def _rest_in_coda(self, recurrence: Recurrence, z: Tensor, frame: Frame) -> None:
        traced = self.cache.traced[self.places.lanes]
        if not bool(traced.any()):
            return
        for further in range(1, int((self.most - self.depths).max()) + 1):
            going = traced & (self.depths + further <= self.most)
            if bool(going.any()):
                view = self.rows(going).at(self.depths[going] + further)
                self.cache.model.outputs(recurrence.hidden(z[going], frame.rows(going)), view.coda(0))


@dataclass(frozen=True)
class PagedLoop:
    """One loop of some rows: a `LoopMemory`. All its bodies keep their layers in the same entries."""

    view: PagedView
    depths: Tensor

    @cached_property
    def entries(self) -> Entries:
        return Entries(self.view.places, self.view.cache.looped, self.depths, fresh=True)

    def past(self, body: int) -> PagedLayers:
        return PagedLayers(self.view, self.entries, body * self.view.cache.layers)

    def energy(self, added: Tensor) -> Tensor:
        sums, rows = self.view.cache.energies.view(-1), self.entries.rows
        return sums.index_add_(0, rows, added.sum(1)).index_select(0, rows)


@dataclass(frozen=True)
class Entries:
    """Which entries of a store some rows write and read at one slot of each; found out once for all layers.

    No position takes a loop twice, so the entries of a loop are always new ones.
    """

    places: Places
    store: Store
    slots: Tensor
    fresh: bool = False

    @cached_property
    def rows(self) -> Tensor:
        """Of the store's table [R]"""
        return self.store.rows(self.places.lanes, self.slots)

    @cached_property
    def written(self) -> Tensor:
        """Of the new positions [R·L]"""
        return self.store.claim(self.rows, self.places.columns, self.fresh).flatten()

    @cached_property
    def read(self) -> Tensor:
        """Of all positions so far, 0 where a row is shorter than the longest [R·n]"""
        return self.store.entries(self.rows, self.places.longest).flatten()


@dataclass(frozen=True)
class PagedLayers:
    """The layers from `first` on of a store: `Pasts`."""

    view: PagedView
    entries: Entries
    first: int
    traced: bool = False

    def layer(self, number: int) -> PagedPast:
        if self.traced:
            self.view.cache.traced[self.view.places.lanes] = True
        return PagedPast(self, self.first + number)


@dataclass(frozen=True)
class PagedPast:
    """One layer of some rows: a `Past`."""

    layers: PagedLayers
    number: int

    @property
    def positions(self) -> Tensor:
        return self.layers.view.positions

    def put(self, k: Tensor, v: Tensor) -> None:
        both = torch.stack([k.transpose(1, 2), v.transpose(1, 2)], dim=2).flatten(0, 1)
        entries = self.layers.entries
        written = entries.written  # first, because making room replaces the data
        entries.store.data[self.number].index_copy_(0, written, both)

    def seen(self) -> tuple[Tensor, Tensor, Tensor | None]:
        places, entries = self.layers.view.places, self.layers.entries
        found = entries.store.data[self.number].index_select(0, entries.read)
        keys, values = found.unflatten(0, (-1, places.longest)).transpose(1, 3).unbind(2)
        return keys, values, places.visible
