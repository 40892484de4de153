"""Whether a compiled step is faster here: a training step, and a token under a cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median

import torch

from scse.bench.rows import Row
from scse.config import scale
from scse.devices import CPU, send
from scse.families import SCSE
from scse.generation import Depth, KVCache, settle
from scse.machine import keep_freed_memory
from scse.measure import clock, elapsed
from scse.model import LoopedLM, model_config
from scse.progress import SILENT, Meter

TRAINED_LOOPS, DECODED_LOOPS, CONTEXT = 4, 8, 96
TOKENS_A_ROUND = 8


class CompilingBench:
    """The same work by a plain and by a compiled model, in turns."""

    def __init__(self, scale_name: str, tokens: int, repeats: int, device: torch.device = CPU) -> None:
        self.device, self.repeats = device, max(5, repeats)
        self.pieces = 4 * self.repeats  # plain and compiled, in every round of two
        shape = scale(scale_name)
        shape = replace(shape, context=max(shape.context, CONTEXT + TOKENS_A_ROUND))
        self.plain, self.compiled = (LoopedLM(model_config(SCSE, shape)).to(device) for _ in range(2))
        self.compiled.compile_step()
        draw = torch.Generator().manual_seed(0)
        length = min(shape.context, tokens)
        size = (max(1, tokens // length), length + 1)
        self.rows = send(torch.randint(0, shape.vocabulary, size, generator=draw), device)
        self.tokens = size[0] * length

    def step(self, model: LoopedLM) -> Callable[[], None]:
        """Forward and backward of a training step."""

        def work() -> None:
            model.train().nll(self.rows[:, :-1], self.rows[:, 1:], TRAINED_LOOPS).backward()
            model.zero_grad(set_to_none=True)

        return work

    def decode(self, model: LoopedLM) -> Callable[[], None]:
        """Some tokens after others, without the head, under a cache as generation makes it for this model."""
        ids, depth = self.rows[:1, :1].expand(1, CONTEXT), Depth(DECODED_LOOPS)
        cache = KVCache(model.eval(), 1, DECODED_LOOPS, CONTEXT + TOKENS_A_ROUND, model.compiled)
        settle(model, ids, cache.append(CONTEXT), depth)

        def work() -> None:
            model.eval()
            cache.length = CONTEXT  # forget the last repetition
            for _ in range(TOKENS_A_ROUND):
                settle(model, ids[:, :1], cache.append(1), depth)

        return work

    def run(self, meter: Meter = SILENT) -> Iterator[Row]:
        keep_freed_memory()
        for what, make, each in (
            (f"a training step of {self.tokens} tokens, T = {TRAINED_LOOPS}", self.step, 1),
            (f"a cached token after {CONTEXT}, T = {DECODED_LOOPS}, without the head", self.decode, TOKENS_A_ROUND),
        ):
            plain, compiled = make(self.plain), make(self.compiled)
            begin = clock(self.device)
            compiled()
            first = elapsed(begin, self.device)
            plain()
            rounds = []
            for _ in range(self.repeats):
                rounds.append((self._seconds(plain), self._seconds(compiled)))
                meter.advance(2)
            yield Row(f"{what}: plain", 1e3 * median(one for one, _ in rounds) / each, "ms")
            note = f"median of {self.repeats} rounds; the first call, with compiling, took {first:.0f} s"
            yield Row("compiled over plain, time", median(other / one for one, other in rounds), "×", note=note)

    def _seconds(self, work: Callable[[], None]) -> float:
        """On a CPU the processor's time, which other work on the machine does not lengthen as much."""
        on_cpu = self.device.type == "cpu"
        begin = time.process_time() if on_cpu else clock(self.device)
        work()
        return time.process_time() - begin if on_cpu else elapsed(begin, self.device)
