"""Where keys and values lie: entries of one position each, and a table that says which of them belong to whom."""

from __future__ import annotations

import torch
from torch import Tensor

from scse.model import LoopedLM

FIRST_ENTRIES = 256


class Store:
    """Entries for some layers that are always used together. Entry 0 is zero for ever: it stands for nothing, so that
    no row ever multiplies what another row left behind."""

    def __init__(self, model: LoopedLM, layers: int, slots: int, lanes: int) -> None:
        shape, weight = model.config.shape, model.tokens.weight
        self.layers = layers
        self._weight = weight.detach()
        self._entry = (2, shape.kv_heads or shape.heads, shape.head_width)
        self.table = torch.zeros(lanes, slots * bool(layers), shape.context, dtype=torch.long, device=weight.device)
        self._rows, self._cells = self.table.flatten(0, 1), self.table.flatten()
        self.reserved = 0
        self._clear()

    def _clear(self) -> None:
        self.data = self._weight.new_zeros(self.layers, FIRST_ENTRIES + 1, *self._entry)
        self._free = torch.arange(FIRST_ENTRIES, 0, -1, device=self.table.device)
        self._left = FIRST_ENTRIES

    @property
    def entry_bytes(self) -> int:
        """What one entry takes, over all layers."""
        return self.layers * int(self.data[0, 0].nbytes)

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)

    @property
    def used(self) -> int:
        return len(self._free) - self._left

    def rows(self, lanes: Tensor, slots: Tensor) -> Tensor:
        """Where the table's rows for some lanes at one slot of each lie, one after the other."""
        return lanes * self.table.shape[1] + slots

    def entries(self, rows: Tensor, length: int) -> Tensor:
        """Those of the first columns of some rows [R, length]"""
        return self._rows[:, :length].index_select(0, rows)

    def claim(self, rows: Tensor, columns: Tensor, fresh: bool) -> Tensor:
        """The entries of some columns [R, L], new ones where there were none; `fresh`: where nobody has any."""
        cells = self._cells_of(rows, columns)
        if fresh:
            self._cells.index_copy_(0, cells.flatten(), taken := self._take(cells.numel()))
            return taken.view(cells.shape)
        found = self._cells[cells]
        missing = found == 0
        count = int(missing.sum())
        if count:
            found[missing] = self._take(count)
            self._cells[cells] = found
        return found

    def share(self, lanes: Tensor, slots: Tensor, others: Tensor, columns: Tensor) -> None:
        """Let the slots that `others` [R, slots] marks point to the entries that one slot of each lane has at some
        columns [R, L]."""
        known = self._cells[self._cells_of(self.rows(lanes, slots), columns)]
        every = self.rows(lanes[:, None], torch.arange(self.table.shape[1], device=lanes.device))
        cells = self._cells_of(every, columns[:, None])
        self._cells[cells] = torch.where(others[..., None], known[:, None], self._cells[cells])

    def _cells_of(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Where some columns [..., L] of the table's rows [...] lie"""
        return rows[..., None] * self.table.shape[2] + columns

    def release(self, lane: int) -> None:
        """Give back everything a lane holds."""
        held = self.table[lane].unique()
        held = held[held > 0]
        self._free[self._left : self._left + len(held)] = held
        self._left += len(held)
        self.table[lane] = 0

    def trim(self) -> None:
        """Return the memory of earlier requests, when nothing is held."""
        if not self.used and len(self._free) > FIRST_ENTRIES:
            self._clear()

    def _take(self, count: int) -> Tensor:
        if count > self._left:
            self._grow(count - self._left)
        self._left -= count
        return self._free[self._left : self._left + count].clone()

    def _grow(self, least: int) -> None:
        """Double, but hold no more than has been promised to those who are running."""
        size = len(self._free)
        more = max(least, min(size, self.reserved - size))
        grown = self.data.new_empty(self.layers, 1 + size + more, *self._entry)
        grown[:, : 1 + size] = self.data
        grown[:, 1 + size :] = 0
        self.data = grown
        fresh = torch.arange(size + more, size, -1, device=self._free.device)
        self._free = torch.cat([self._free[: self._left], fresh, self._free.new_zeros(size - self._left)])
        self._left += more
