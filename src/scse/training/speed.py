"""How fast the machine multiplies."""

from __future__ import annotations

from functools import cache

import torch

from scse.measure import clock, elapsed

SMALLEST_PRODUCT = 256
SECONDS_TO_GROW = 0.1


def matmul_rate(dtype: torch.dtype, device: torch.device) -> float:
    """The rate of a square product, in FLOP/s; measured once by a process, for its number of threads."""
    return _known_rate(dtype, device, torch.get_num_threads())


@cache
def _known_rate(dtype: torch.dtype, device: torch.device, threads: int) -> float:
    return measure_rate(dtype, device)


def measure_rate(dtype: torch.dtype, device: torch.device, repeats: int = 3) -> float:
    """The best of some measurements made now, of products that grow until one takes long.

    Where the hardware does not multiply in a type, the largest would take a minute. An accelerator needs larger ones
    before it is busy.
    """
    best, size = 0.0, SMALLEST_PRODUCT
    largest = 2048 if device.type == "cpu" else 8192
    while size <= largest:
        seconds = min(_seconds(dtype, device, size) for _ in range(repeats + 1))
        best = max(best, 2 * size**3 / seconds)
        size = 2 * size if seconds < SECONDS_TO_GROW else largest + 1
    return best


def _seconds(dtype: torch.dtype, device: torch.device, size: int) -> float:
    left, right = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    begin = clock(device)
    torch.mm(left, right)
    return elapsed(begin, device)
