"""Work inside a library that does not listen to signals, and yet ends with Ctrl-C or SIGTERM."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from scse.signals import stops_raise

T = TypeVar("T")
SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_TO_STOP_READING = 10.0


class _AbandonedError(Exception):
    """Nobody waits for this work any more."""


def interruptible(work: Callable[[Iterator[T]], None], items: Iterable[T]) -> None:
    """Run `work(items)` in a thread of its own, while this one waits for it and for signals.

    A signal ends the wait and the items. Work that has taken them all is left to itself: it ends with the process.
    """
    abandoned, all_read, finished = threading.Event(), threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def until_abandoned() -> Iterator[T]:
        for item in items:
            if abandoned.is_set():
                raise _AbandonedError
            yield item
        all_read.set()

    def run() -> None:
        try:
            work(until_abandoned())
        except BaseException as failure:
            failures.append(failure)
        finally:
            finished.set()

    try:
        with stops_raise():
            threading.Thread(target=run, daemon=True).start()
            # A signal that another thread receives does not wake this one, which is the one to answer it.
            while not finished.wait(SECONDS_BETWEEN_LOOKS):
                pass
    except BaseException:
        abandoned.set()
        if not all_read.is_set():  # a thread that runs Python must not meet the interpreter's end
            finished.wait(SECONDS_TO_STOP_READING)
        raise
    if failures:
        raise failures[0]
