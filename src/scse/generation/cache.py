"""Keys and values by (loop, body, layer, position): a new token costs T applications of the core on one position.

Shapes: S slots, B rows, R rows at hand, L new positions, n positions so far, K key and value heads, k width of a head.

`KVCache` is exact. The classes after it trade exactness for memory by letting loops share slots; what that costs in
perplexity is measured in docs/generation.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from scse.devices import send
from scse.errors import UserError, unknown_name
from scse.model import LoopedLM
from scse.recurrence import Recurrence
from scse.recurrence.base import Frame

FIRST_CAPACITY = 64


class KVCache:
    """One slot for every loop, body and layer, and for every layer of prelude and coda, so cached and uncached logits
    agree. The coda's slots hold positions in the state in which they ended. An exit rule that reads predictions needs
    the coda after every loop; slots for that are added when it asks for the first time.

    Memory is reserved for `capacity` positions and doubled when they are used up, never past the model's context.
    The sums of squares behind the zero-deviation mask are kept per loop, over the positions so far without padding.
    """

    def __init__(self, model: LoopedLM, batch: int, loops: int, capacity: int = FIRST_CAPACITY) -> None:
        if min(batch, loops, capacity) < 1:
            raise UserError(f"a cache needs at least one row, loop and position, got {batch}, {loops}, {capacity}")
        shape, weight = model.config.shape, model.tokens.weight
        self.loops, self.context, self.length = loops, shape.context, 0
        self.model, self.traced = model, False
        self.bodies, self.layers = model.recurrence.bodies_per_step, shape.core
        self.looped = self.slots * self.bodies * self.layers
        count, heads = self.looped + shape.prelude + shape.coda, shape.kv_heads or shape.heads
        size = (count, batch, heads, min(capacity, shape.context), shape.head_width)
        kind = weight.device.type  # where products are in bfloat16, so are the keys and values that they take
        stored = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        self.keys = torch.empty(size, dtype=stored, device=weight.device)
        self.values = torch.empty_like(self.keys)
        self.energies = torch.zeros(loops, batch, dtype=weight.dtype, device=weight.device)
        self.padding, self.padded = torch.zeros(batch, dtype=torch.long, device=weight.device), False

    @property
    def slots(self) -> int:
        """How many loops are told apart."""
        return self.loops

    def slot(self, t: int) -> int:
        """Where loop t keeps its keys and values."""
        if t >= self.loops:
            raise UserError(f"the cache was made for {self.loops} loops; make one for at least {t + 1}")
        return t

    @property
    def batch(self) -> int:
        return self.keys.shape[1]

    @property
    def nbytes(self) -> int:
        """What is reserved for keys and values."""
        return self.keys.nbytes + self.values.nbytes

    def trace_coda(self, begin: int) -> None:
        """Make room for what the coda sees after every loop, from the first position on."""
        if self.traced:
            return
        if begin:
            raise UserError("this exit rule looks at predictions from the first token on; start it with an empty cache")
        more = (self.loops + 1) * self.model.config.shape.coda
        self.keys, self.values = (
            torch.cat([old, old.new_empty(more, *old.shape[1:])]) for old in (self.keys, self.values)
        )
        self.traced = True

    def append(self, count: int, real: Tensor | None = None) -> CacheView:
        """Room for the next `count` positions of every row.

        `real` [B, count] marks tokens that are not padding; padding may only stand before a row's first token.
        """
        begin, end = self.length, self.length + count
        if end > self.context:
            raise UserError(
                f"{end} tokens are more than the model's {self.context} positions; "
                "ask for fewer new tokens, shorten the prompt, or let the window slide"
            )
        if real is not None:
            self._pad(real)
        self._reserve(end)
        self.length = end
        return CacheView(self, begin, end)

    def select(self, rows: Tensor) -> None:
        """Go on with these rows alone, in this order; a row may appear several times (beams)."""
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]
        self.energies, self.padding = self.energies[:, rows], self.padding[rows]

    def _pad(self, real: Tensor) -> None:
        """Looked at by the host, which must know whether anything is padded; once for all loops."""
        real = real.cpu()
        lead = (real.cumsum(1) == 0).sum(1)
        if not torch.equal(real.sum(1) + lead, torch.full_like(lead, real.shape[1])) or (lead == real.shape[1]).any():
            raise UserError("padding must stand on the left of a row and leave it at least one token")
        if lead.any():
            if self.length:
                raise UserError("padding can only stand before the first tokens, and the cache already holds some")
            self.padding, self.padded = self.padding + send(lead, self.padding.device), True

    def _reserve(self, end: int) -> None:
        capacity = self.keys.shape[3]
        if end > capacity:
            more = min(max(end, 2 * capacity), self.context) - capacity
            self.keys, self.values = (
                torch.cat([old, old.new_empty(*old.shape[:3], more, old.shape[4])], dim=3)
                for old in (self.keys, self.values)
            )


class LastLoopsCache(KVCache):
    """An approximation with the memory of `kept` loops: loop t shares a slot with t ± kept, t ± 2·kept, …

    A slot holds what its last writer left, so an old position shows its last `kept` loops exactly, and in place of an
    earlier one the loop of the same slot among them.
    """

    def __init__(self, model: LoopedLM, batch: int, loops: int, capacity: int = FIRST_CAPACITY, kept: int = 4) -> None:
        if kept < 1:
            raise UserError(f"a cache must keep at least one loop, got {kept}")
        self.kept = kept
        super().__init__(model, batch, loops, capacity)

    @property
    def slots(self) -> int:
        return min(self.kept, self.loops)

    def slot(self, t: int) -> int:
        return super().slot(t) % self.slots


class SharedSlotCache(LastLoopsCache):
    """An approximation with the memory of one loop: every loop sees old positions as their last loop left them."""

    def __init__(self, model: LoopedLM, batch: int, loops: int, capacity: int = FIRST_CAPACITY) -> None:
        super().__init__(model, batch, loops, capacity, kept=1)


def make_cache(kind: str, model: LoopedLM, batch: int, loops: int, capacity: int = FIRST_CAPACITY) -> KVCache:
    """A cache by name: 'exact', 'shared', or 'last-N' for the last N loops."""
    stem, _, number = kind.partition("-")
    if stem == "last" and number.isascii() and number.isdigit():
        return LastLoopsCache(model, batch, loops, capacity, kept=int(number))
    if kind == "shared":
        return SharedSlotCache(model, batch, loops, capacity)
    if kind != "exact":
        raise unknown_name("cache", kind, ("exact", "shared", "last-4"), hint="'last-N' keeps the last N loops")
    return KVCache(model, batch, loops, capacity)


@dataclass(frozen=True)
class CacheView:
    """The columns `begin` … `end` of a cache, for all its rows or for those of `chosen`: a `Memory` of an unroll."""

    cache: KVCache
    begin: int
    end: int
    chosen: Tensor | None = None

    @property
    def padding(self) -> Tensor:
        padding = self.cache.padding
        return padding if self.chosen is None else padding[self.chosen]

    @cached_property
    def positions(self) -> Tensor:
        """Of the new tokens, counted from each row's first [R, L]"""
        return (self._columns() - self.padding[:, None]).clamp_min(0)

    @cached_property
    def real(self) -> Tensor:
        """Which of the new columns hold a token [R, L]"""
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

    def prelude(self) -> LayersView:
        return LayersView(self, self.cache.looped, self.cache.model.config.shape.prelude)

    def loop(self, t: int) -> LoopView:
        return LoopView(self, t)

    def coda(self, t: int | None = None) -> LayersView:
        shape = self.cache.model.config.shape
        last = self.cache.looped + shape.prelude
        return LayersView(self, last if t is None else last + (1 + t) * shape.coda, shape.coda, traced=t is not None)

    def rows(self, keep: Tensor) -> CacheView:
        everyone = torch.arange(self.cache.batch, device=keep.device) if self.chosen is None else self.chosen
        return replace(self, chosen=everyone[keep])

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
