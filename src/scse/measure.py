"""Time and peak memory of a piece of work."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any

import torch

from scse.devices import CPU, device_peak, synchronise
from scse.progress import SILENT, Meter


def clock(device: torch.device = CPU) -> float:
    """The time, once a device has done what it was given before."""
    synchronise(device)
    return time.perf_counter()


def elapsed(begin: float, device: torch.device = CPU) -> float:
    """Seconds since `begin = clock(device)`; always positive, for those who divide by it."""
    return max(clock(device) - begin, 1e-9)


def best_seconds(
    work: Mapping[str, Callable[[], object]], repeats: int, meter: Meter = SILENT, device: torch.device = CPU
) -> dict[str, float]:
    """The shortest time of each piece; the pieces take turns, so that a slow minute of the machine hits all alike."""
    best = dict.fromkeys(work, float("inf"))
    for _ in range(repeats):
        for name, piece in work.items():
            begin = clock(device)
            piece()
            best[name] = min(best[name], elapsed(begin, device))
            meter.advance()
    return best


# Kernels by what they do; everything else that takes time is element-wise work and bookkeeping.
KERNELS = {
    "aten::mm": "matrix products",
    "aten::addmm": "matrix products",
    "aten::bmm": "matrix products",
    "aten::mkldnn_linear": "matrix products",
    "mkldnn::_linear_pointwise": "matrix products",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": "attention",
    "aten::_flash_attention_forward": "attention",
    "aten::_flash_attention_backward": "attention",
    "aten::_efficient_attention_forward": "attention",
    "aten::_efficient_attention_backward": "attention",
    "aten::_log_softmax": "softmax of the head",
    "aten::exp_": "softmax of the head",
    "aten::random_": "dropout masks",
    "aten::ge": "dropout masks",
}


def _profiled(**options: Any) -> torch.profiler.profile:
    """torch's profiler, which announces itself on stderr unless told not to."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    return torch.profiler.profile(**options)


def time_by_kind(piece: Callable[[], object], device: torch.device = CPU) -> dict[str, float]:
    """The share of the time that goes to each kind of kernel, largest first."""
    activity, on_cpu = torch.profiler.ProfilerActivity, device.type == "cpu"
    with _profiled(activities=[activity.CPU] if on_cpu else [activity.CPU, activity.CUDA]) as profile:
        piece()
        synchronise(device)
    seconds: dict[str, float] = {}
    for event in profile.key_averages():
        kind = KERNELS.get(event.key, "element-wise and the rest")
        spent = event.self_cpu_time_total if on_cpu else event.self_device_time_total
        seconds[kind] = seconds.get(kind, 0.0) + spent
    total = sum(seconds.values())
    return {kind: part / total for kind, part in sorted(seconds.items(), key=lambda pair: -pair[1])}


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """The memory of tensors, one that is given twice counted once."""
    return sum({tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}.values())


def peak_allocated(piece: Callable[[], object], held: Iterable[torch.Tensor], device: torch.device = CPU) -> int:
    """The most memory allocated during a piece of work: what it works with (`held`) and what it makes.

    An accelerator counts this itself.
    """
    return bytes_of(held) + peak_bytes(piece) if device.type == "cpu" else device_peak(piece, device)


def peak_bytes(piece: Callable[[], object], device: torch.device = CPU) -> int:
    """How far the memory of tensors rises above where it stood, from torch's own record of every allocation.

    What the piece works with and did not make, its model's weights above all, is not in it: see `peak_allocated`.

    The process's resident size would also count what the C library keeps for later, which differs from run to run.
    """
    if device.type != "cpu":
        stood = device_peak(lambda: None, device)
        return device_peak(piece, device) - stood
    with _profiled(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        piece()
    results = profile.profiler.kineto_results if profile.profiler else None
    assert results is not None
    changes = [(event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"]
    return max(accumulate(size for _, size in sorted(changes)), default=0)
