"""What the engine counts while it works."""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, field

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass
class Histogram:
    """How many values were at most each bound; the last place counts all."""

    bounds: tuple[float, ...] = SECONDS
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass
class Counters:
    """Written by the engine's thread alone; reading a number at any moment is safe.

    `row_loops` counts rows over all loops of the decoding batch, `loops` these loops themselves. FLOPs are the proxies
    of `scse.flops`: `flops` of what was computed, `full_flops` of the same tokens had each taken all loops allowed.
    `full_rate` are FLOPs per second of decoding at full depth with a whole batch, where that has been measured.
    """

    started: float = field(default_factory=time.time)
    prompt_tokens: int = 0
    new_tokens: int = 0
    new_token_loops: int = 0
    loops: int = 0
    row_loops: int = 0
    heads: int = 0
    head_rows: int = 0
    decode_seconds: float = 0.0
    flops: float = 0.0
    full_flops: float = 0.0
    full_rate: float = 0.0
    failures: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    first_token: Histogram = field(default_factory=Histogram)
    whole: Histogram = field(default_factory=Histogram)
