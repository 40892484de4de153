"""Cached decoding against recomputing, and how a token's time grows with the context."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from scse.bench.rows import Row
from scse.config import scale
from scse.devices import CPU, send
from scse.families import SCSE
from scse.generation import Depth, KVCache, settle
from scse.measure import best_seconds
from scse.model import LoopedLM, model_config
from scse.progress import SILENT, Meter

SHORT, LONG = 32, 512
LOOPS = 8


class DecodingBench:
    """One new token after a short and a long context, batch 1."""

    def __init__(self, scale_name: str, repeats: int, device: torch.device = CPU) -> None:
        self.device = device
        self.repeats = max(7, repeats)
        self.pieces = 3 * self.repeats
        shape = replace(scale(scale_name), context=LONG + 1)
        self.model = LoopedLM(model_config(SCSE, shape)).to(device).eval()
        draw = torch.Generator().manual_seed(0)
        self.ids = send(torch.randint(0, shape.vocabulary, (1, LONG + 1), generator=draw), device)

    def cached(self, context: int) -> Callable[[], None]:
        """The next token after `context` others, of which the cache remembers everything."""
        cache = KVCache(self.model, 1, LOOPS, LONG + 1)
        settle(self.model, self.ids[:, :context], cache.append(context), Depth(LOOPS))

        def step() -> None:
            cache.length = context  # forget the last repetition
            self._read(settle(self.model, self.ids[:, :1], cache.append(1), Depth(LOOPS)).hidden)

        return step

    @torch.no_grad()
    def _read(self, hidden: torch.Tensor) -> None:
        self.model.readout(hidden[:, -1])

    @torch.no_grad()
    def recompute(self) -> None:
        """The same token without a cache: everything again, the head on the last position alone."""
        self._read(self.model.hidden(self.ids, LOOPS))

    def run(self, meter: Meter = SILENT) -> Iterator[Row]:
        work = {"short": self.cached(SHORT), "long": self.cached(LONG), "again": self.recompute}
        times = best_seconds(work, self.repeats, meter, self.device)
        ratio, growth = times["again"] / times["long"], times["long"] / times["short"]
        name = f"a token after {LONG} others, T = {LOOPS}"
        yield Row(f"{name}, cached", 1e3 * times["long"], "ms", note=f"recomputed {1e3 * times['again']:.0f} ms")
        yield Row("cached over recomputed", ratio, "×", "≥ 8", ratio >= 8)
        yield Row(f"time per token, {LONG} over {SHORT} tokens of context", growth, "×", "≤ 1.5", growth <= 1.5)
        memory = KVCache(self.model, 1, LOOPS, LONG).nbytes / 2**20
        yield Row(f"cache of {LONG} tokens, T = {LOOPS}", memory, "MiB", note="grows with T and with the context")
