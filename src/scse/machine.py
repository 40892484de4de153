"""What the process asks of the machine it runs on."""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache
from pathlib import Path

# glibc's numbers for mallopt(3)
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_GLIBC_DEFAULT = 128 * 1024


def keep_freed_memory(keep: bool = True) -> bool:
    """Let the process reuse the memory of freed tensors instead of returning it; False where that is not possible.

    By default glibc maps every large tensor anew and unmaps it when it is freed, and the kernel zeroes its pages each
    time. In a training step on a CPU that costs as much as a tenth of the time. The commands that train call this
    once at their start; a library only does so when asked.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    map_above, trim_above = (1 << 30, 2**31 - 1) if keep else (_GLIBC_DEFAULT, _GLIBC_DEFAULT)
    return bool(mallopt(_MMAP_THRESHOLD, map_above) and mallopt(_TRIM_THRESHOLD, trim_above))


@cache
def processor_maker() -> str:
    """Who made the processor, in its own words (GenuineIntel, AuthenticAMD); empty where it cannot be told."""
    try:
        described = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        described = platform.processor()  # on Windows it ends in the maker's name
    return next((name for name in ("GenuineIntel", "AuthenticAMD") if name in described), "")
