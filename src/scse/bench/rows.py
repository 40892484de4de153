"""What a benchmark prints."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the benchmark. `bar` is what we hold ourselves to, `met` whether this run of it did."""

    measure: str
    value: float
    unit: str
    bar: str = ""
    met: bool | None = None
    note: str = ""
