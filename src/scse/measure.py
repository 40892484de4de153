"""Time and peak memory of a piece of work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate

import torch

from scse.progress import SILENT, Meter


def elapsed(begin: float) -> float:
    """Seconds since `begin = time.perf_counter()`; always positive, for those who divide by it."""
    return max(time.perf_counter() - begin, 1e-9)


def best_seconds(work: Mapping[str, Callable[[], object]], repeats: int, meter: Meter = SILENT) -> dict[str, float]:
    """The shortest time of each piece; the pieces take turns, so that a slow minute of the machine hits all alike."""
    best = dict.fromkeys(work, float("inf"))
    for _ in range(repeats):
        for name, piece in work.items():
            begin = time.perf_counter()
            piece()
            best[name] = min(best[name], elapsed(begin))
            meter.advance()
    return best


# Kernels by what they do; everything else that takes time is element-wise work and bookkeeping.
KERNELS = {
    "aten::mm": "matrix products",
    "aten::addmm": "matrix products",
    "aten::bmm": "matrix products",
    "aten::mkldnn_linear": "matrix products",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": "attention",
    "aten::_log_softmax": "softmax of the head",
    "aten::exp_": "softmax of the head",
    "aten::random_": "dropout masks",
    "aten::ge": "dropout masks",
}


def time_by_kind(piece: Callable[[], object]) -> dict[str, float]:
    """The share of the time that goes to each kind of kernel, largest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        piece()
    seconds: dict[str, float] = {}
    for event in profile.key_averages():
        kind = KERNELS.get(event.key, "element-wise and the rest")
        seconds[kind] = seconds.get(kind, 0.0) + event.self_cpu_time_total
    total = sum(seconds.values())
    return {kind: part / total for kind, part in sorted(seconds.items(), key=lambda pair: -pair[1])}


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """The memory of tensors, one that is given twice counted once."""
    return sum({tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}.values())


def peak_bytes(piece: Callable[[], object]) -> int:
    """How far the memory of tensors rises above where it stood, from torch's own record of every allocation.

    What the piece works with and did not make, its model's weights above all, is not in it: see `bytes_of`.

    The process's resident size would also count what the C library keeps for later, which differs from run to run.
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        piece()
    results = profile.profiler.kineto_results if profile.profiler else None
    assert results is not None
    changes = [(event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"]
    return max(accumulate(size for _, size in sorted(changes)), default=0)
