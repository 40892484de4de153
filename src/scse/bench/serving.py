"""The server's engine against the plain batched decode loop, and early exit against the bound that FLOPs set."""

from __future__ import annotations

import time
from collections.abc import Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from scse.bench.rows import Row
from scse.config import scale
from scse.devices import CPU
from scse.evaluation.rules import NO_PAST, Codas, ExitRule
from scse.families import SCSE
from scse.flops import token_flops
from scse.generation import GREEDY, Depth, Generation, stream
from scse.machine import keep_freed_memory
from scse.measure import clock
from scse.model import LoopedLM, model_config
from scse.progress import SILENT, Meter
from scse.serve.engine import Engine
from scse.serve.limits import RUNNING, Limits
from scse.serve.sequence import Sequence, Token, Wanted

PROMPT = 32
BATCH = 16
LANES = (BATCH, RUNNING * BATCH)  # as many as share a loop, and as many as 'scse serve' runs
ROUNDS = 3  # tokens of every row of a batch, between two looks at the clock
TOUCHED = 1020 * 2**20  # bytes, below what would be mapped anew
TURNS = 5  # as many for each repeat that was asked for


@dataclass(frozen=True)
class Depths:
    """At most so many loops, and the chance that a token stops after one of them."""

    most: int
    chance: float


SHALLOW = Depths(8, 0.22)  # 3.9 loops on average
DEEP = Depths(32, 0.06)  # 14.4: where loops, and not the head, take the time


class DrawnExit(ExitRule):
    """A number between 0 and 1 for every token and loop, as good as drawn.

    Random weights have no exits of their own that would mean anything; what matters here is when rows leave a batch.
    """

    name = "drawn"

    def statistic(self, model: LoopedLM, before: Tensor, after: Tensor, codas: Codas = NO_PAST) -> Tensor:
        return (after.sum(-1) * 1e4).frac().abs()


DRAWN = DrawnExit()


class _Count:
    """A sink that remembers the loops of each token."""

    def __init__(self) -> None:
        self.loops: list[int] = []

    def prompt(self, scored: list[Token]) -> None:
        """Nothing was asked about it."""

    def token(self, new: Token) -> bool:
        self.loops.append(new.loops)
        return False

    def end(self, reason: str, message: str = "") -> None:
        assert reason in ("length", "cancelled"), message


class Plain:
    """The batched decode loop, from prompts that are through."""

    def __init__(self, bench: ServingBench, depths: Depths) -> None:
        self.bench, self.depths = bench, depths
        self.seconds: list[float] = []
        self._left = 0

    def turn(self) -> None:
        if not self._left:
            self._left = self.bench.new_tokens // 2 // ROUNDS  # begins anew where `Served` does: equally long pasts
            work = Generation(Depth(self.depths.most), 1 + self._left * ROUNDS, GREEDY)
            self._steps = stream(self.bench.model, self.bench.ids[:BATCH], work)
            next(self._steps)
        self._left -= 1
        begin = self.bench.clock()
        for _ in range(ROUNDS):
            next(self._steps)
        self.seconds.append((self.bench.clock() - begin) / (ROUNDS * BATCH))


class Served:
    """So many sequences that decode at once, from prompts that are through, `BATCH` of them in a loop."""

    def __init__(self, bench: ServingBench, depths: Depths, lanes: int, early: bool) -> None:
        self.bench, self.depths, self.lanes, self.early = bench, depths, lanes, early
        self.engine = Engine(bench.model, Limits(batch=BATCH, lanes=lanes, prefill=lanes * PROMPT))
        self.seconds: list[float] = []
        self._sequences: list[Sequence] = []
        self._left = self._tokens = self._loops = 0

    def turn(self) -> None:
        if self._left < ROUNDS * BATCH:
            self._begin()
        counters = self.engine.counters
        tokens, loops, begin = counters.new_tokens, counters.new_token_loops, self.bench.clock()
        while counters.new_tokens - tokens < ROUNDS * BATCH:
            self.engine.tick()
        answered = counters.new_tokens - tokens
        self.seconds.append((self.bench.clock() - begin) / answered)
        self._left -= answered
        self._tokens += answered
        self._loops += counters.new_token_loops - loops

    def _begin(self) -> None:
        """Until all have their first token. None may end while the clock runs, and some are faster than others."""
        self.engine.cancel(self._sequences)
        self.engine.tick()
        sinks = [_Count() for _ in range(self.lanes)]
        threshold, most = self.depths.chance if self.early else None, self.depths.most
        self._sequences = [
            Sequence(Wanted(tuple(row), self.bench.new_tokens, most, threshold, DRAWN), sink, sink)
            for row, sink in zip(self.bench.ids, sinks, strict=False)
        ]
        self.engine.submit(self._sequences)
        while not all(sink.loops for sink in sinks):
            self.engine.tick()
        self._left = self.lanes * self.bench.new_tokens // 2

    @property
    def bound(self) -> float:
        """How many times faster than at full depth FLOPs alone would let this be."""
        shape = self.bench.shape
        return token_flops(shape, self.depths.most) / token_flops(shape, self.mean_loops)

    @property
    def mean_loops(self) -> float:
        return self._loops / self._tokens

    @property
    def rate(self) -> float:
        """Tokens per second"""
        return 1 / median(self.seconds)


class ServingBench:
    """Requests whose prompts are through, answered by the plain loop and by the engine, at full depth and with tokens
    that stop earlier. All take turns, and a ratio is the median over turns that followed each other."""

    def __init__(self, scale_name: str, repeats: int, device: torch.device = CPU) -> None:
        self.device = device
        self.shape = scale(scale_name)
        self.new_tokens = self.shape.context - PROMPT
        self.model = LoopedLM(model_config(SCSE, self.shape)).to(device).eval()
        self.model.lay_out()  # as every command that infers does
        draw = torch.Generator().manual_seed(0)
        self.ids = torch.randint(0, self.shape.vocabulary, (max(LANES), PROMPT), generator=draw).tolist()
        self.turns = TURNS * repeats
        self.pieces = 2 * self.turns * (1 + 2 * len(LANES))

    def run(self, meter: Meter = SILENT) -> Iterator[Row]:
        if keep_freed_memory():  # as 'scse serve' does; and a process that has run for a while has touched its memory
            torch.ones(TOUCHED // 4)
        for depths in (SHALLOW, DEEP):
            plain = Plain(self, depths)
            full, early = ([Served(self, depths, lanes, early) for lanes in LANES] for early in (False, True))
            everyone: list[Plain | Served] = [plain, *full, *early]
            for _ in range(self.turns):
                for one in everyone:
                    one.turn()
                    meter.advance()
            yield from self._compare(plain, full, early)

    def clock(self) -> float:
        """Where one thread computes, its own time, which does not run while others have the processor."""
        alone = self.device == CPU and torch.get_num_threads() == 1
        return time.process_time() if alone else clock(self.device)

    def _compare(self, plain: Plain, full: list[Served], early: list[Served]) -> Iterator[Row]:
        depth = f"T = {plain.depths.most}"
        slower = paired(full[0].seconds, plain.seconds)
        yield Row(f"{BATCH} at once, {depth}, served", full[0].rate, "tokens/s")
        yield Row(f"served over the plain loop, {depth}, time", slower, "×", "≤ 1.02", slower <= 1.02)
        for whole, some in zip(full, early, strict=True):
            bound, loops = some.bound, some.mean_loops
            share, usual = paired(whole.seconds, some.seconds) / bound, some.lanes == max(LANES)
            yield Row(
                f"share of the FLOP bound, {depth}, {some.lanes} at once, {BATCH} a loop",
                share,
                "",
                "≥ 0.9" if usual else "",
                share >= 0.9 if usual else None,
                f"{some.rate:.0f} against {whole.rate:.0f} tokens/s, {loops:.1f} loops, {bound:.2f} × at most",
            )


def paired(left: Several[float], right: Several[float]) -> float:
    """left / right, the median over turns"""
    return median(a / b for a, b in zip(left, right, strict=True))
