"""Keys and values by (loop, body, layer, position): a new token costs T applications of the core on one position.

Shapes: S slots, B rows, R rows at hand, L new positions, n positions so far, K key and value heads, k width of a head.

`KVCache` is exact. The classes after it trade exactness for memory by letting loops share slots; what that costs in
perplexity is measured in docs/generation.md.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from scse.devices import send
from scse.errors import UserError, unknown_name
from scse.generation.fixed import FixedColumn
from scse.generation.views import CacheView
from scse.model import LoopedLM

FIRST_CAPACITY = 64


class KVCache:
    """One slot for every loop, body and layer, and for every layer of prelude and coda, so cached and uncached logits
    agree. The coda's slots hold positions in the state in which they ended. An exit rule that reads predictions needs
    the coda after every loop; slots for that are added when it asks for the first time.

    Memory is reserved for `capacity` positions and doubled when they are used up, never past the model's context.
    With `fixed` it is reserved once and stays where it is, and a single new position works on all of it under a mask:
    then nothing about a token depends on where it stands but the contents of tensors (`FixedColumn`).
    The sums of squares behind the zero-deviation mask are kept per loop, over the positions so far without padding.
    """

    def __init__(
        self, model: LoopedLM, batch: int, loops: int, capacity: int = FIRST_CAPACITY, fixed: bool = False
    ) -> None:
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
        # What a mask hides is still multiplied, by zero, so that it must be a number.
        make = torch.zeros if fixed else torch.empty
        self.keys, self.values = (make(size, dtype=stored, device=weight.device) for _ in range(2))
        self.fixed = fixed
        self._column: FixedColumn | None = None
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
            torch.cat([old, old.new_zeros(more, *old.shape[1:])]) for old in (self.keys, self.values)
        )
        self.traced, self._column = True, None

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
        view = CacheView(self, begin, end)
        return replace(view, fixed=self._moved(begin)) if self.fixed and view.single else view

    def clear(self) -> None:
        """Forget everything, and stay in place."""
        self.length, self.padded = 0, False
        self.energies.zero_()
        self.padding.zero_()

    def select(self, rows: Tensor) -> None:
        """Go on with these rows alone, in this order; a row may appear several times (beams)."""
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]
        self.energies, self.padding = self.energies[:, rows], self.padding[rows]
        self._column = None

    def _moved(self, column: int) -> FixedColumn:
        if self._column is None:
            self._column = FixedColumn(self.keys, self.values)
        self._column.move(column, self.padding)
        return self._column

    def _pad(self, real: Tensor) -> None:
        """Looked at by the host, which must know whether anything is padded; once for all loops."""
        real = real.cpu()
        lead = (real.cumsum(1) == 0).sum(1)
        if not torch.equal(real.sum(1) + lead, torch.full_like(lead, real.shape[1])) or (lead == real.shape[1]).any():
            raise UserError("padding must stand on the left of a row and leave it at least one token")
        if lead.any():
            if self.length:
                raise UserError("padding can only stand before the first tokens, and the cache already holds some")
            self.padding.add_(send(lead, self.padding.device))
            self.padded = True

    def _reserve(self, end: int) -> None:
        capacity = self.keys.shape[3]
        if end > capacity and self.fixed:
            raise UserError(f"the cache was made for {capacity} positions and stays so; make one for at least {end}")
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

    def __init__(
        self,
        model: LoopedLM,
        batch: int,
        loops: int,
        capacity: int = FIRST_CAPACITY,
        fixed: bool = False,
        kept: int = 4,
    ) -> None:
        if kept < 1:
            raise UserError(f"a cache must keep at least one loop, got {kept}")
        self.kept = kept
        super().__init__(model, batch, loops, capacity, fixed)

    @property
    def slots(self) -> int:
        return min(self.kept, self.loops)

    def slot(self, t: int) -> int:
        return super().slot(t) % self.slots


def make_cache(
    kind: str, model: LoopedLM, batch: int, loops: int, capacity: int = FIRST_CAPACITY, fixed: bool = False
) -> KVCache:
    """A cache by name: 'exact', 'last-N' for the last N loops, or 'shared', which is 'last-1'."""
    stem, _, number = kind.partition("-")
    if stem == "last" and number.isascii() and number.isdigit():
        return LastLoopsCache(model, batch, loops, capacity, fixed, kept=int(number))
    if kind == "shared":
        return LastLoopsCache(model, batch, loops, capacity, fixed, kept=1)
    if kind != "exact":
        hint = "valid: exact, shared, and last-N, which keeps the last N loops"
        raise unknown_name("cache", kind, ("exact", "shared", "last-4"), hint)
    return KVCache(model, batch, loops, capacity, fixed)
