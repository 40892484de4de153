"""What SIGTERM, SIGUSR2 and Ctrl-C do, in one place: they raise, or, where work can be saved first, they ask.

SIGUSR2 is the warning that schedulers send before the time of a job is up; it is answered like SIGTERM.

Handlers are set once, by whoever comes first (`scse` does so before anything else); what is nested inside changes only
how they answer. So there is no moment at which a signal finds no handler between two of them.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
Handler = Callable[[int, FrameType | None], Any] | int | None


class Terminated(SystemExit):
    """SIGTERM or SIGUSR2 where there is nothing to save. Uncaught, it ends the process with 143."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


STOPS = (KeyboardInterrupt, Terminated)


class StopRequest:
    requested = False


_asked: StopRequest | None = None
_heard: set[int] = set()


def time_is_up() -> bool:
    """Whether this process has been warned that the time of its job is nearly up."""
    return signal.SIGUSR2 in _heard


def _answer(number: int, frame: FrameType | None) -> None:
    _heard.add(number)
    if _asked is not None and not _asked.requested:
        _asked.requested = True
    elif number == signal.SIGINT:
        raise KeyboardInterrupt
    elif _asked is None:
        raise Terminated
    # Schedulers and launchers repeat SIGTERM while work is being saved; those in a hurry send SIGKILL.


@contextmanager
def stops_raise(over_others: bool = False) -> Iterator[None]:
    """SIGTERM and SIGUSR2 raise `Terminated`, Ctrl-C `KeyboardInterrupt`.

    What the surrounding program does with a signal is left alone, unless `over_others`; what is ignored stays ignored.
    Only the main thread may set handlers: elsewhere the program decides what signals do.
    """
    here = threading.current_thread() is threading.main_thread()
    found = {number: signal.getsignal(number) for number in NUMBERS}
    before = {number: handler for number, handler in found.items() if here and _may_replace(handler, over_others)}
    try:
        for number in before:
            signal.signal(number, _answer)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _may_replace(handler: Handler, over_others: bool) -> bool:
    if handler in (signal.SIG_DFL, signal.default_int_handler):
        return True
    return over_others and callable(handler) and handler is not _answer


@contextmanager
def stops_ask() -> Iterator[StopRequest]:
    """The first signal only sets `requested`, so that the current step can end and be saved; a second Ctrl-C raises."""
    global _asked
    if threading.current_thread() is not threading.main_thread():
        yield StopRequest()
        return
    stop = StopRequest()
    outer, _asked = _asked, stop
    try:
        with stops_raise(over_others=True):
            yield stop
    finally:
        _asked = outer
