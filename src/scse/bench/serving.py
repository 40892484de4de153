"""The server's engine against the plain batched decode loop, and early exit against the bound that FLOPs set."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from scse.bench.rows import Row
from scse.config import scale
from scse.evaluation.rules import NO_PAST, Codas, ExitRule
from scse.families import SCSE
from scse.flops import token_flops
from scse.generation import GREEDY, Depth, Generation, stream
from scse.measure import best_seconds
from scse.model import LoopedLM, model_config
from scse.progress import SILENT, Meter
from scse.serve.engine import Engine
from scse.serve.limits import Limits
from scse.serve.sequence import Sequence, Token, Wanted

ROWS, PROMPT, NEW, LOOPS = 16, 32, 24, 8
STOPPING = 0.22  # the chance that a token stops after a loop; of at most 8, it then takes 3.9 on average


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
        assert reason == "length", message


class ServingBench:
    """Sixteen requests that begin together, prompts included.

    They are answered by the plain loop, by the engine at full depth, and by the engine with tokens that stop earlier.
    """

    def __init__(self, scale_name: str, repeats: int) -> None:
        self.repeats, self.pieces = repeats, 3 * repeats
        self.shape = scale(scale_name)
        self.model = LoopedLM(model_config(SCSE, self.shape)).eval()
        draw = torch.Generator().manual_seed(0)
        self.ids = torch.randint(0, self.shape.vocabulary, (ROWS, PROMPT), generator=draw)
        self.mean_loops = float(LOOPS)

    def plain(self) -> None:
        for _ in stream(self.model, self.ids.tolist(), Generation(Depth(LOOPS), NEW, GREEDY)):
            pass

    def served(self, threshold: float | None = None) -> None:
        engine = Engine(self.model, Limits(lanes=ROWS, prefill=ROWS * PROMPT))
        sinks = [_Count() for _ in self.ids]
        engine.submit(
            [
                Sequence(Wanted(tuple(row), NEW, LOOPS, threshold, DRAWN), sink, sink)
                for row, sink in zip(self.ids.tolist(), sinks, strict=True)
            ]
        )
        while engine.tick():
            pass
        taken = [loops for sink in sinks for loops in sink.loops]
        self.mean_loops = sum(taken) / len(taken)

    def run(self, meter: Meter = SILENT) -> Iterator[Row]:
        work = {"plain": self.plain, "full": self.served, "early": lambda: self.served(STOPPING)}
        times = best_seconds(work, self.repeats, meter)
        rates = {name: ROWS * NEW / seconds for name, seconds in times.items()}
        slower = times["full"] / times["plain"]
        name = f"{ROWS} requests, {PROMPT} + {NEW} tokens, T = {LOOPS}"
        yield Row(f"{name}, served", rates["full"], "tokens/s", note=f"plain loop {rates['plain']:.0f}")
        yield Row("served over the plain loop, time", slower, "×", "≤ 1.02", slower <= 1.02)
        bound = token_flops(self.shape, LOOPS) / token_flops(self.shape, self.mean_loops)
        share = times["full"] / times["early"] / bound
        yield Row(
            f"early exit, {self.mean_loops:.2f} loops on average",
            rates["early"],
            "tokens/s",
            note=f"{bound:.2f} × at most",
        )
        yield Row("share of the FLOP bound that early exit reaches", share, "", "≥ 0.9", share >= 0.9)
