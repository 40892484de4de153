"""What early exit could bring at most on a machine whose products take as long for eight rows as for twelve.

The bound that FLOPs set supposes that half the rows take half the time. Here the time of a loop and of the head by
their rows is taken as measured, and a batch that costs nothing else is simulated under the best of the simple rules for
calling the head.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

TOKENS = 3000


@dataclass(frozen=True)
class Times:
    """Seconds by number of rows; between those measured, on a straight line."""

    measured: Mapping[int, float]

    def of(self, rows: int) -> float:
        known = sorted(self.measured)
        place = min(max(bisect_left(known, rows), 1), len(known) - 1)
        low, high = known[place - 1], known[place]
        share = (rows - low) / (high - low)
        return self.measured[low] + share * (self.measured[high] - self.measured[low])


def seconds_per_token(loop: Times, head: Times, rows: int, most: int, chance: float) -> float:
    """Where a token stops after each loop with this chance, and after so many at the latest."""
    return min(_waiting_for(least, loop, head, rows, most, chance) for least in range(1, rows + 1))


def _waiting_for(least: int, loop: Times, head: Times, rows: int, most: int, chance: float) -> float:
    """The head is called once so many rows wait for it, or none is left that could still come."""
    draw = random.Random(0)
    depths, waiting, answered, seconds = [0] * rows, 0, 0, 0.0
    while answered < TOKENS:
        seconds += loop.of(len(depths))
        depths = [depth + 1 for depth in depths if depth + 1 < most and draw.random() >= chance]
        waiting = rows - len(depths)
        if waiting >= least or not depths:
            seconds += head.of(waiting)
            answered += waiting
            depths += [0] * waiting
    return seconds / answered
