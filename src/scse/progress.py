"""Progress of long work: a bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SECONDS_BETWEEN_LINES = 5.0


class Meter(Protocol):
    """What the body of a `with progress(...)` block reports to."""

    def advance(self, n: float = 1) -> None: ...

    def describe(self, text: str) -> None: ...


@contextmanager
def progress(
    label: str, total: float | None, unit: str, enabled: bool = True, amounts: bool = True, timed: bool = False
) -> Iterator[Meter]:
    """Show how far some work has come, on stderr; `total=None` when its size is not known beforehand.

    `amounts=False` leaves room for a description that says itself how far the work has come. Work that is `timed` is
    left alone: the bar is drawn when told of progress and not in between. Work that fails before it has begun leaves no
    trace: the error alone speaks.
    """
    if not enabled:
        yield SILENT
    elif sys.stderr.isatty():
        with _rich_bar(unit, amounts, auto_refresh=not timed) as bar:
            task = bar.add_task(label, total=total)
            try:
                yield _Bar(bar, task)
            except BaseException:
                bar.update(task, visible=bar.tasks[0].completed > 0)
                raise
    else:
        lines = _Lines(label, total, unit, amounts)
        try:
            yield lines
        except BaseException:
            if lines.begun:
                lines.close("stopped")
            raise
        lines.close("done")


class _Silent:
    def advance(self, n: float = 1) -> None:
        pass

    def describe(self, text: str) -> None:
        pass


SILENT: Meter = _Silent()


class _Bar:
    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar, self._task = bar, task

    def advance(self, n: float = 1) -> None:
        self._bar.advance(self._task, n)
        if not self._bar.live.auto_refresh:
            self._bar.refresh()

    def describe(self, text: str) -> None:
        self._bar.update(self._task, description=text)


class _Lines:
    def __init__(self, label: str, total: float | None, unit: str, amounts: bool) -> None:
        self._label, self._total, self._unit, self._amounts = label, total, unit, amounts
        self._count = 0.0
        self._start = self._last = time.monotonic()

    def advance(self, n: float = 1) -> None:
        self._count += n
        now = time.monotonic()
        if now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            self._write(self._status(now - self._start))

    def describe(self, text: str) -> None:
        self._label = text

    @property
    def begun(self) -> bool:
        return self._count > 0

    def close(self, outcome: str) -> None:
        seconds = time.monotonic() - self._start
        self._write(f"{outcome}, {amount(self._count)} {self._unit} in {seconds:.1f} s")

    def _status(self, seconds: float) -> str:
        rate = self._count / max(seconds, 1e-9)
        speed = f"{amount(rate)} {self._unit}/s"
        if not self._total:
            return f"{amount(self._count)} {self._unit}, {speed}"
        left = max(self._total - self._count, 0) / max(rate, 1e-9)
        share = self._count / self._total
        done = f"{amount(self._count)} of {amount(self._total)} {self._unit} ({share:.0%}), " if self._amounts else ""
        return f"{done}{speed}, {left:.0f} s left"

    def _write(self, text: str) -> None:
        sys.stderr.write(f"{self._label}: {text}\n")
        sys.stderr.flush()


def amount(value: float) -> str:
    """A count in three digits or so.

    >>> amount(950), amount(12_345), amount(2_448_382)
    ('950', '12.3k', '2.4M')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f}{letter}"
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _rich_bar(unit: str, amounts: bool, auto_refresh: bool = True) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.table import Column
    from rich.text import Text

    class Amounts(ProgressColumn):
        def render(self, task: Task) -> Text:
            of = f" of {amount(task.total)}" if task.total else ""
            done = f"{amount(task.completed)}{of} {unit}" if amounts else ""
            speed = f"{amount(task.speed)} {unit}/s" if task.speed else ""
            return Text(", ".join(filter(None, (done, speed))))

    text = TextColumn("{task.description}", markup=False)
    # On a narrow terminal the bar gives way, not the words.
    bar = BarColumn(bar_width=None, table_column=Column(max_width=40))
    whole = (Amounts(Column(no_wrap=True)), TimeRemainingColumn(table_column=Column(no_wrap=True)))
    return Progress(text, bar, *whole, console=Console(stderr=True), auto_refresh=auto_refresh)
