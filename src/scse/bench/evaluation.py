"""Evaluation: nine depths from one unroll against nine passes, and early exit against fixed depths."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from scse.bench.rows import Row
from scse.bench.serving import DrawnExit
from scse.config import scale
from scse.config.use import DEPTHS
from scse.devices import CPU
from scse.evaluation import perplexity_over_depths
from scse.evaluation.adaptive import online
from scse.evaluation.rules import Stopping
from scse.families import SCSE
from scse.flops import token_flops
from scse.machine import keep_freed_memory
from scse.measure import best_seconds
from scse.model import LoopedLM, model_config
from scse.progress import SILENT, Meter

MEAN, CEILING = 8, max(DEPTHS)
WINDOWS, SLOTS = 32, 8
CHANCE = 0.1247  # of stopping after a loop, which makes 8 loops on average when there are at most 48


class DrawnExample(DrawnExit):
    """The same for whole examples: the number of their last token."""

    name = "drawn-example"

    def of_examples(self, per_token: Tensor) -> Tensor:
        return per_token[:, -1]


class EvaluationBench:
    """Perplexity of the same windows: all depths together and one by one, and with examples that stop early.

    Ratios of early exit are those of a mean of 8 loops: times are divided by the FLOPs of the loops that were taken.
    """

    def __init__(self, scale_name: str, repeats: int, device: torch.device = CPU) -> None:
        self.repeats, self.device = max(1, repeats // 2), device  # a round takes as long as five of the others'
        self.shape = scale(scale_name)
        self.model = LoopedLM(model_config(SCSE, self.shape)).to(device).eval()
        draw = np.random.default_rng(0)
        self.tokens = draw.integers(0, self.shape.vocabulary, WINDOWS * self.shape.context + 1).astype(np.uint16)
        self.stopping = Stopping(DrawnExample(), CEILING, batch=SLOTS)
        self.mean_loops = 0.0
        self.pieces = (2 + len(DEPTHS)) * self.repeats

    def _read(self, *depths: int) -> None:
        perplexity_over_depths(self.model, self.tokens, depths, batch=SLOTS)

    def _exit_early(self) -> None:
        self.mean_loops = online(self.model, self.tokens, self.stopping, CHANCE).mean_depth

    def run(self, meter: Meter = SILENT) -> Iterator[Row]:
        keep_freed_memory()  # as 'scse eval' does
        work = {"together": lambda: self._read(*DEPTHS), "early": self._exit_early}
        alone = {f"T = {depth}": lambda depth=depth: self._read(depth) for depth in DEPTHS}
        times = best_seconds({**work, **alone}, self.repeats, meter, self.device)
        yield from self._together(times)
        yield from self._early(times)

    def _together(self, times: dict[str, float]) -> Iterator[Row]:
        apart = sum(times[f"T = {depth}"] for depth in DEPTHS)
        ratio = times["together"] / apart
        heads = (len(DEPTHS) - 1) * token_flops(self.shape, 0)  # every depth is read out, in one pass or in nine
        floor = (token_flops(self.shape, CEILING) + heads) / sum(token_flops(self.shape, depth) for depth in DEPTHS)
        note = f"{apart:.1f} s one by one; FLOPs allow {floor:.2f}"
        yield Row(f"{len(DEPTHS)} depths of one unroll over as many passes", ratio, "×", "≤ 0.45", ratio <= 0.45, note)

    def _early(self, times: dict[str, float]) -> Iterator[Row]:
        at_mean = times["early"] * token_flops(self.shape, MEAN) / token_flops(self.shape, self.mean_loops)
        for depth, bar in ((MEAN, 1.1), (CEILING, 0.2)):
            ratio = at_mean / times[f"T = {depth}"]
            floor = token_flops(self.shape, MEAN) / token_flops(self.shape, depth)
            note = f"{self.mean_loops:.1f} loops taken; FLOPs allow {floor:.2f}"
            name = f"early exit, mean {MEAN} loops, over T = {depth}"
            yield Row(name, ratio, "×", f"≤ {bar}", ratio <= bar, note)
