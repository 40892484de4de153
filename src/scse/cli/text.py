"""Values and sentences as people read them on a terminal or in a file."""

from __future__ import annotations

import logging
import os
import re
import sys
import textwrap
from typing import TextIO

MISSING = "–"


def terminal_width(stream: TextIO | None = None) -> int | None:
    """The columns of the terminal that standard output (or a stream) goes to; None where it goes elsewhere."""
    stream = stream or sys.stdout
    if not stream.isatty():
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80


def render(value: object) -> str:
    """A value as people read it: four digits, thousands apart, a dash where there is none."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:,.4g}"
    return str(value)


def duration(seconds: float) -> str:
    """'40 s', '12 min', '3.5 h' or '9.2 d'"""
    for size, unit in ((86_400, "d"), (3600, "h")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def print_text(text: str, stream: TextIO | None = None) -> None:
    """Sentences, wrapped at words on a terminal; a word wider than that, such as a path, stays whole."""
    print(fitted_text(text, stream), file=stream or sys.stdout)


def fitted_text(text: str, stream: TextIO | None = None) -> str:
    """Sentences with the line breaks that a terminal needs."""
    width = terminal_width(stream)
    lines = text.splitlines() or [""]
    return "\n".join(lines if width is None else (part for line in lines for part in wrapped(line, width)))


class Fitted(logging.Formatter):
    """Log lines that break at words on a terminal; a traceback stays as it is."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.exc_info else fitted_text(text, sys.stderr)


def print_sample(text: str) -> None:
    """Text that a model wrote, behind a bar: its own lines, and nothing that could steer the terminal."""
    width = terminal_width()
    for line in text.expandtabs(4).split("\n"):
        for piece in [harmless(line)] if width is None else pieces(harmless(line), width - 4):
            print(f"  │ {piece}".rstrip())


def harmless(text: str) -> str:
    """Text without control characters, but with its lines and tabs."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def pieces(text: str, width: int) -> list[str]:
    """A line cut where the terminal ends."""
    return [text[i : i + width] for i in range(0, len(text), width)] or [""]


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width`, broken at spaces. An indented entry, '  name  text', goes on below its text."""
    entry = re.match(r" +(?:\S+(?: \S+)*  +)?", text)
    hang = " " * (len(entry[0]) if entry else 0)
    lines = textwrap.wrap(text, width, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False)
    return lines or [""]


def shortened(text: str, width: int) -> str:
    """A name that no line can hold, without its middle.

    >>> shortened("runs/wikitext-103/scse/seed0", 15)
    'runs/wi…e/seed0'
    """
    if cell_width(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def cell_width(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)
