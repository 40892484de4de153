"""What a depth costs at inference: latency, throughput, memory, with warm-up and spread."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from scse.measure import clock, elapsed, peak_allocated
from scse.model import LoopedLM
from scse.progress import Meter, progress

WARM_UP = 2


@dataclass(frozen=True)
class ProfileRow:
    """Median latency of a batch through to its logits, the spread between quartiles, and the most memory allocated.

    `peak_allocated_mib` is what an accelerator counts as peak allocated memory, and the same on a CPU: the weights, the
    batch, and all that is made of them. Records of `peak_mib`, which earlier revisions wrote, leave the weights out.
    """

    depth: int
    latency_ms: float
    spread_ms: float
    tokens_per_second: float
    peak_allocated_mib: float


@torch.no_grad()
def profile(
    model: LoopedLM, depths: Sequence[int], batch: int, length: int, repeats: int, show: bool = False
) -> list[ProfileRow]:
    """Random tokens; the depths take turns, so that a slow moment of the machine hits all alike."""
    draw = torch.Generator().manual_seed(0)
    (ids,) = model.place(torch.randint(0, model.config.shape.vocabulary, (batch, length), generator=draw))
    times: dict[int, list[float]] = {depth: [] for depth in depths}
    runs = WARM_UP + repeats
    with progress("profiling", (runs + 1) * sum(depths), "loops", show, timed=True) as meter:
        for turn in range(runs):
            for depth in depths:
                begin = clock(model.device)
                model(ids, depth)
                if turn >= WARM_UP:
                    times[depth].append(elapsed(begin, model.device))
                meter.advance(depth)
        return [_row(model, ids, depth, seconds, meter) for depth, seconds in times.items()]


def _row(model: LoopedLM, ids: torch.Tensor, depth: int, seconds: list[float], meter: Meter) -> ProfileRow:
    median = statistics.median(seconds)
    low, _, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else (median, median, median)
    held = [*model.parameters(), *model.buffers(), ids]
    memory = peak_allocated(lambda: model(ids, depth), held, model.device)
    meter.advance(depth)
    return ProfileRow(depth, 1e3 * median, 1e3 * (high - low), ids.numel() / median, memory / 2**20)
