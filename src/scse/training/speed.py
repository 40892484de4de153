"""How fast the machine multiplies, and what share of that a training step reaches."""

from __future__ import annotations

import time
from functools import cache

import torch

from scse.config import TrainConfig
from scse.flops import token_flops
from scse.measure import elapsed


def matmul_rate(dtype: torch.dtype, device: torch.device) -> float:
    """The rate of a square product, in FLOP/s; measured once by a process, for its number of threads."""
    return _known_rate(dtype, device, torch.get_num_threads())


@cache
def _known_rate(dtype: torch.dtype, device: torch.device, threads: int) -> float:
    return measure_rate(dtype, device)


def measure_rate(dtype: torch.dtype, device: torch.device, size: int = 2048, repeats: int = 3) -> float:
    """The best of some measurements made now."""
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best = float("inf")
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        torch.mm(left, right)
        if device.type == "cuda":  # pragma: no cover: needs a GPU
            torch.cuda.synchronize(device)
        best = min(best, elapsed(begin))
    return 2 * size**3 / best


def training_flops(config: TrainConfig, applications: int) -> float:
    """Matrix products of one optimiser step: forward and twice that backward, over blocks and head."""
    return 3.0 * config.tokens_per_step * token_flops(config.model.shape, applications)
