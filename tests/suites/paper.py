"""The paper's tables and what its sentences say, for checking ours against them.

They come from `paper_values.json`, which `paper_source.py` writes from the paper's LaTeX: the cells of its tables, and
a digest of each sentence that the tests expect.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

VALUES = Path(__file__).with_name("paper_values.json")

Number = tuple[float, float | None]


@dataclass(frozen=True)
class Row:
    group: str
    label: str
    cells: list[str]

    @property
    def numbers(self) -> list[Number]:
        """The cells that hold a number, in order."""
        return [number for cell in self.cells if (number := as_number(cell)) is not None]


@dataclass(frozen=True)
class PaperTable:
    """`above` holds what stands over several headers at once, with how many columns it spans."""

    above: list[tuple[int, str]]
    headers: list[str]
    rows: list[Row]

    def cell(self, group: str, label: str, header: str) -> Number | None:
        (row,) = [row for row in self.rows if (row.group, row.label) == (group, label)]
        return as_number(row.cells[self.headers.index(header)])


@cache
def values() -> dict[str, Any]:
    return json.loads(VALUES.read_text("utf-8"))


def table(label: str) -> PaperTable:
    """The table of a label."""
    held = values()["tables"][label]
    above = [(span, text) for span, text in held["above"]]
    return PaperTable(above, held["headers"], [Row(group, name, cells) for group, name, *cells in held["rows"]])


def digest(sentence: str) -> str:
    return hashlib.sha256(sentence.encode()).hexdigest()[:16]


def says(sentence: str) -> bool:
    """Whether these words, as LaTeX, are in the paper. Only sentences that the tests expect can be asked for."""
    return digest(sentence) in values()["sentences"]


def as_number(cell: str) -> Number | None:
    match = re.fullmatch(r"([\d.]+(?:e-\d+)?)(?:±([\d.]+))?", cell)
    return (float(match[1]), float(match[2]) if match[2] else None) if match else None
