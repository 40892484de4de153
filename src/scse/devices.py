"""Where tensors live and are computed with: one name for every command, and what differs between kinds of device."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from shutil import which

import torch
from torch import Tensor

from scse.compiling import AUTO, ON, PAYS_AFTER_TOKENS, compiling
from scse.errors import UserError, unknown_name

NAMES = ("auto", "cpu", "cuda", "cuda:0", "mps")
CPU = torch.device("cpu")
_CPU_FACTS = Path("/proc/cpuinfo")


def resolve_device(name: str | torch.device = "auto", float64: bool = False) -> torch.device:
    """A device by name; 'auto' is the accelerator where there is one.

    With `float64` it is for work that needs such numbers, which MPS does not have.
    """
    asked = str(name)
    if asked == "auto":
        return _accelerator(float64) or CPU
    kind, colon, number = asked.partition(":")
    if kind not in ("cpu", "cuda", "mps") or (colon and not (kind == "cuda" and number.isascii() and number.isdigit())):
        hint = "valid: auto, cpu, mps, cuda, and cuda:N, the N-th GPU, counted from 0"
        raise unknown_name("device", asked, NAMES, hint=hint)
    if kind == "cuda":
        return _cuda(asked, int(number) if colon else None)
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UserError("this machine has no device 'mps'; use --device cpu or auto")
    if kind == "mps" and float64:
        raise UserError("this needs float64 numbers, which 'mps' does not have; use --device cpu")
    return torch.device(kind)


def _accelerator(float64: bool) -> torch.device | None:
    if torch.cuda.is_available():
        return _cuda("cuda", None)
    return torch.device("mps") if torch.backends.mps.is_available() and not float64 else None


def _cuda(asked: str, number: int | None) -> torch.device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        built = "" if torch.version.cuda else f"torch {torch.__version__} was built without CUDA; "
        raise UserError(f"there is no device '{asked}' here: {built}use --device cpu or auto")
    if number is not None and number >= count:
        last = "only cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise UserError(f"there is no device '{asked}' here: torch sees {last}")
    return torch.device("cuda", torch.cuda.current_device() if number is None else number)


@cache
def device_name(device: torch.device) -> str:
    """What the maker calls it."""
    if device.type == "cuda":  # pragma: no cover: needs a GPU
        return torch.cuda.get_device_name(device)
    stated = _CPU_FACTS.read_text("utf-8", "replace") if _CPU_FACTS.is_file() else ""
    models = [line.partition(":")[2].strip() for line in stated.splitlines() if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def wide(device: torch.device) -> torch.dtype:
    """The type in which sums and angles are formed: float64, or the widest that the device has."""
    return torch.float32 if device.type == "mps" else torch.float64


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Matrix products in this precision; states, norms, sums and losses stay as they are."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()


def compiles(wanted: str | bool, device: torch.device, tokens: int = 0) -> bool:
    """Whether steps are compiled there. 'auto' is where that pays: always on an accelerator, and on a CPU where so many
    `tokens` are to be decoded under a cache that the time comes back."""
    answer, on_cpu, compiler = compiling(wanted), device.type == "cpu", os.environ.get("CXX", "g++")
    if answer == AUTO:
        return not on_cpu or (tokens >= PAYS_AFTER_TOKENS and which(compiler) is not None)
    if answer == ON and on_cpu and which(compiler) is None:
        needed = f"compiling needs a C++ compiler ({compiler}) on this device"
        raise UserError(f"{needed}; install one, or leave --compile out")
    return answer == ON


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A host's tensor on a device, copied while the host goes on where the device can do that."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def synchronise(device: torch.device) -> None:
    """Wait until a device has done everything it was given. A CPU is never behind."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":  # pragma: no cover: needs a Mac
        torch.mps.synchronize()


def device_peak(piece: Callable[[], object], device: torch.device) -> int:
    """The most memory that an accelerator had allocated during a piece of work, by its own counter.

    MPS counts no peak: there it is what the driver holds afterwards, which is at least as much.
    """
    if device.type == "mps":  # pragma: no cover: needs a Mac
        piece()
        synchronise(device)
        return torch.mps.driver_allocated_memory()
    torch.cuda.reset_peak_memory_stats(device)
    piece()
    synchronise(device)
    return torch.cuda.max_memory_allocated(device)
