"""Work inside a library that does not listen to signals, and yet ends with Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn, TypeVar

T = TypeVar("T")
SECONDS_TO_STOP_READING = 0.5


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

    threading.Thread(target=run, daemon=True).start()
    try:
        with _sigterm_unwinds():
            finished.wait()
    except BaseException:
        abandoned.set()
        if not all_read.is_set():  # a thread that runs Python must not meet the interpreter's end
            finished.wait(SECONDS_TO_STOP_READING)
        raise
    if failures:
        raise failures[0]


@contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """SIGTERM runs what cleans up before it ends the process, unless the program has its own plans for it."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
