"""The server's engine against the plain batched decode loop, and early exit against the bound that FLOPs set."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from scse.bench.attainable import Times, seconds_per_token
from scse.bench.rows import Row
from scse.config import scale
from scse.devices import CPU, send
from scse.evaluation.rules import NO_PAST, Codas, ExitRule
from scse.families import SCSE
from scse.flops import token_flops
from scse.generation import GREEDY, Depth, Generation, stream
from scse.machine import keep_freed_memory
from scse.measure import clock
from scse.model import LoopedLM, model_config
from scse.progress import SILENT, Meter
from scse.serve.engine import Engine
from scse.serve.limits import Limits
from scse.serve.sequence import Sequence, Token, Wanted

PROMPT, ROUNDS = 32, 4
ROWS, MORE_ROWS = 16, 24
FEWER = (1, 4, 8, 12)


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


@dataclass
class Traffic:
    """So many sequences that decode at once, from prompts that are through: the shortest time of a token so far."""

    rows: int
    depths: Depths
    early: bool = False
    seconds: float = float("inf")
    mean_loops: float = 0.0

    def bound(self, bench: ServingBench) -> float:
        """How many times faster than at full depth FLOPs alone would let this be."""
        return token_flops(bench.shape, self.depths.most) / token_flops(bench.shape, self.mean_loops)


class ServingBench:
    """Requests whose prompts are through, answered by the plain loop and by the engine, at full depth and with tokens
    that stop earlier; at two depths, and with more requests at once."""

    def __init__(self, scale_name: str, repeats: int, device: torch.device = CPU) -> None:
        self.repeats, self.device = repeats, device
        self.shape = scale(scale_name)
        self.model = LoopedLM(model_config(SCSE, self.shape)).to(device).eval()
        draw = torch.Generator().manual_seed(0)
        self.ids = torch.randint(0, self.shape.vocabulary, (MORE_ROWS, PROMPT), generator=draw).tolist()
        self.traffic = [
            Traffic(rows, depths, early)
            for depths in (SHALLOW, DEEP)
            for rows, early in ((ROWS, False), (ROWS, True), (MORE_ROWS, False), (MORE_ROWS, True))
        ]
        self.fewer = [Traffic(rows, SHALLOW) for rows in FEWER]
        self.plain = [Traffic(ROWS, depths) for depths in (SHALLOW, DEEP)]
        self.pieces = repeats * (len(self.traffic) + len(self.fewer) + len(self.plain)) + repeats * (len(FEWER) + 2)

    def run(self, meter: Meter = SILENT) -> Iterator[Row]:
        keep_freed_memory()  # as 'scse serve' does
        engines = {rows: self._engine(rows) for rows in (*FEWER, ROWS, MORE_ROWS)}
        for _ in range(self.repeats):
            for traffic in self.plain:
                self._decode_plainly(traffic)
                meter.advance()
            for traffic in (*self.traffic, *self.fewer):
                self._serve(engines[traffic.rows], traffic)
                meter.advance()
        head = self._head_times(engines[ROWS], meter)
        for depths, plain in zip((SHALLOW, DEEP), self.plain, strict=True):
            yield from self._compare(plain, [one for one in self.traffic if one.depths is depths], head)
        yield self._by_rows(head)

    def clock(self) -> float:
        """Where one thread computes, its own time, which does not run while others have the processor."""
        alone = self.device == CPU and torch.get_num_threads() == 1
        return time.process_time() if alone else clock(self.device)

    def _engine(self, rows: int) -> Engine:
        return Engine(self.model, Limits(lanes=rows, prefill=rows * PROMPT))

    def _decode_plainly(self, traffic: Traffic) -> None:
        steps = stream(self.model, self.ids[: traffic.rows], Generation(Depth(traffic.depths.most), ROUNDS + 1, GREEDY))
        next(steps)
        begin = self.clock()
        for _ in range(ROUNDS):
            next(steps)
        traffic.seconds = min(traffic.seconds, (self.clock() - begin) / (ROUNDS * traffic.rows))

    def _serve(self, engine: Engine, traffic: Traffic) -> None:
        """The time of a few rounds, from the moment when all have their first token; what is left is cancelled."""
        sinks = [_Count() for _ in range(traffic.rows)]
        threshold, new = traffic.depths.chance if traffic.early else None, self.shape.context - PROMPT
        sequences = [
            Sequence(Wanted(tuple(row), new, traffic.depths.most, threshold, DRAWN), sink, sink)
            for row, sink in zip(self.ids, sinks, strict=False)
        ]
        engine.submit(sequences)
        while not all(sink.loops for sink in sinks):
            engine.tick()
        counters = engine.counters
        tokens, loops, begin = counters.new_tokens, counters.new_token_loops, self.clock()
        while counters.new_tokens - tokens < ROUNDS * traffic.rows:
            engine.tick()
        seconds, answered = self.clock() - begin, counters.new_tokens - tokens
        engine.cancel(sequences)
        engine.tick()
        if seconds / answered < traffic.seconds:
            traffic.seconds = seconds / answered
            traffic.mean_loops = (counters.new_token_loops - loops) / answered

    def _head_times(self, engine: Engine, meter: Meter) -> Times:
        drawn = torch.randn(MORE_ROWS, self.shape.width, generator=torch.Generator().manual_seed(0))
        outputs = send(drawn, self.device)
        found = {rows: float("inf") for rows in (*FEWER, ROWS, MORE_ROWS)}
        for rows in [*found] * self.repeats:
            begin = self.clock()
            with torch.inference_mode():
                engine.head(outputs[:rows])
            found[rows] = min(found[rows], self.clock() - begin)
            meter.advance()
        return Times(found)

    def _loop_times(self, head: Times) -> Times:
        """What is left of a round at full depth without its head, per loop."""
        full = [*self.fewer, *(one for one in self.traffic if one.depths is SHALLOW and not one.early)]
        return Times({one.rows: (one.rows * one.seconds - head.of(one.rows)) / one.depths.most for one in full})

    def _compare(self, plain: Traffic, traffic: list[Traffic], head: Times) -> Iterator[Row]:
        full, early, more_full, more_early = traffic
        depth = f"T = {full.depths.most}"
        slower = full.seconds / plain.seconds
        yield Row(
            f"{ROWS} at once, {depth}, served", 1 / full.seconds, "tokens/s", note=f"plain loop {1 / plain.seconds:.0f}"
        )
        yield Row(f"served over the plain loop, {depth}, time", slower, "×", "≤ 1.02", slower <= 1.02)
        yield self._early(early, full, "≥ 0.9")
        possible = seconds_per_token(self._loop_times(head), head, ROWS, early.depths.most, early.depths.chance)
        yield Row(
            f"of what this machine's times by rows allow, {depth}",
            possible / early.seconds,
            "",
            note=f"they allow {full.seconds / possible / early.bound(self):.2f} of the FLOP bound",
        )
        yield self._early(more_early, more_full)
        yield self._early(more_early, full)

    def _early(self, early: Traffic, full: Traffic, bar: str = "") -> Row:
        bound = early.bound(self)
        share = full.seconds / early.seconds / bound
        return Row(
            f"share of the FLOP bound, T = {full.depths.most}, {early.rows} at once over {full.rows}",
            share,
            "",
            bar,
            share >= 0.9 if bar else None,
            f"{1 / early.seconds:.0f} against {1 / full.seconds:.0f} tokens/s, {early.mean_loops:.1f} loops, "
            f"{bound:.2f} × at most",
        )

    def _by_rows(self, head: Times) -> Row:
        loop = self._loop_times(head)
        known = sorted(head.measured)
        times = ", ".join(f"{rows}: {loop.of(rows) * 1e3:.1f} + {head.of(rows) * 1e3:.1f}" for rows in known)
        return Row("a loop of 8 rows over one of 16, time", loop.of(8) / loop.of(16), "×", note=f"ms by rows {times}")
