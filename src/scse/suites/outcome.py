"""How the work on a member of a suite ended. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    DONE = "done"
    BUSY = "in use by another process"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class Result:
    outcome: Outcome
    reason: str = ""


def stopped_too_often(times: int, reason: str = "") -> Result:
    """A member that nobody of ours asked to stop, and that has had its turns."""
    cause = f" ({reason})" if reason else ""
    return Result(Outcome.FAILED, f"stopped {times + 1} times{cause}; it is saved, and the same command continues it")
