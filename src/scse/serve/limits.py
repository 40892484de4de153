"""How much a server takes on, and what it says where that is not enough. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from scse.errors import UserError

if TYPE_CHECKING:
    from scse.serve.pages import Need, PagedCache
    from scse.serve.sequence import Wanted

# What a table of so many lanes and loops can reasonably be made for, and how users know these numbers.
MOST = {"batch": 1024, "lanes": 2048, "loops": 1024, "queue": 1_000_000}
NAMES = {
    "batch": "--max-batch",
    "lanes": "twice --max-batch",
    "loops": "--max-loops",
    "queue": "--queue",
    "cache_bytes": "--cache-mib in bytes",
}

HOST = "127.0.0.1"  # where a server listens that is not told
MOST_BODY = 1 << 20  # bytes of a request
GRACE_SECONDS = 30  # for what is under way when a server is told to stop
RUNNING = 2  # times as many sequences run as share a loop: as many again may wait for the head


class Refused(UserError):
    """There is no room now, or there never will be: `status` says which, as HTTP does."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Limits:
    """How many sequences share a loop, run at once and wait, how deep one may go, how much cache there is, and how many
    positions of prompts are under way at once, in chunks of at most so many.

    More sequences run than share a loop, so that the places of those that wait for the head are taken by others.
    """

    batch: int = 16
    lanes: int = RUNNING * 16
    queue: int = 256
    loops: int = 64
    cache_bytes: int = 1 << 30
    chunk: int = 64
    prefill: int = 128

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value, most = getattr(self, name), MOST.get(name, 1 << 60)
            if not 1 <= value <= most:
                raise UserError(f"{NAMES.get(name, name)} must be between 1 and {most}, got {value}")


def needed(cache: PagedCache, wanted: Wanted) -> Need:
    """The most a sequence can come to hold. A rule may ask for the coda after every loop."""
    return cache.need(wanted.positions, wanted.loops, traced=wanted.threshold is not None)


def check(cache: PagedCache, limits: Limits, wanted: Wanted) -> None:
    """Refuse what could never be answered."""
    shape = cache.model.config.shape
    if not wanted.prompt:
        raise Refused("the prompt is empty; give at least one token of text to go on from")
    if not all(0 <= token < shape.vocabulary for token in wanted.prompt):
        raise Refused(f"the prompt has a token outside the vocabulary of {shape.vocabulary}")
    if not 1 <= wanted.loops <= limits.loops:
        raise Refused(f"loops must be between 1 and {limits.loops}, got {wanted.loops}")
    if wanted.positions > shape.context:
        raise Refused(
            f"a prompt of {len(wanted.prompt)} tokens and {wanted.new_tokens} new ones do not fit into the model's "
            f"{shape.context} positions; shorten the prompt or ask for fewer"
        )
    size = cache.need_bytes(needed(cache, wanted))
    if size > limits.cache_bytes:
        raise Refused(
            f"this needs {size / 2**20:.1f} MiB of cache and the server has {limits.cache_bytes / 2**20:.1f}; "
            "ask for fewer tokens or loops"
        )
