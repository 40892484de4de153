"""Sequences that are read one by one, with a target at some of their positions. No torch here.

Running text is the case in which every position has a target: the next token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The target of a position that does not count.
UNCOUNTED = -1


@dataclass(frozen=True)
class Sequences:
    """`ids` [N, L] and the `targets` [N, L] at their positions; `difficulty` [N, L] is 0 where nothing is asked."""

    ids: NDArray[np.int64]
    targets: NDArray[np.int64]
    difficulty: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ids)


# What models are evaluated on: tokens of running text [N], or sequences.
Readable = np.ndarray[Any, Any] | Sequences
