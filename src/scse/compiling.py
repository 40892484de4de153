"""Whether the steps of the loop are compiled: what can be asked for, and what 'auto' means. No torch here."""

from __future__ import annotations

from scse.errors import checked_choice

ON, OFF, AUTO = "on", "off", "auto"
COMPILING = (AUTO, ON, OFF)
# On a CPU a token under a cache is faster compiled, a training step is not; only after so many tokens has compiling
# cost less than it saved (docs/benchmarks.md).
PAYS_AFTER_TOKENS = 5000


def compiling(wanted: str | bool) -> str:
    """One of the three, also for those who say yes or no."""
    if isinstance(wanted, bool):
        return ON if wanted else OFF
    return checked_choice("answer to --compile", wanted, COMPILING)
