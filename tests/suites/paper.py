"""The paper's tables as they stand in its source, for checking ours against them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = Path(os.environ.get("SCSE_PAPER") or ROOT.parent / "shared" / "paper") / "scse.tex"

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
    headers: list[str]
    rows: list[Row]

    def cell(self, group: str, label: str, header: str) -> Number | None:
        (row,) = [row for row in self.rows if (row.group, row.label) == (group, label)]
        return as_number(row.cells[self.headers.index(header)])


@cache
def text() -> str:
    return SOURCE.read_text(encoding="utf-8")


def parse(label: str) -> PaperTable:
    """The tabular that belongs to a label."""
    end = text().index(rf"\label{{tab:{label}}}")
    begin = text().rindex(r"\begin{tabular}", 0, end)
    body = text()[begin : text().index(r"\end{tabular}", begin)]
    head, *parts = body.split(r"\midrule")
    headers = [plain(cell) for cell in lines(head)[-1][1:]]
    rows, group = [], ""
    for cells in lines("".join(parts)):
        if heading := re.fullmatch(r"\\multicolumn\{\d+\}\{l\}\{(.*)\}", cells[0]):
            group = plain(heading[1])
        elif len(cells) > 1:
            rows.append(Row(group, plain(cells[0]), [plain(cell) for cell in cells[1:]]))
    return PaperTable(headers, rows)


def lines(body: str) -> list[list[str]]:
    rules = r"\\(toprule|bottomrule|addlinespace\[\w+\]|cmidrule\(lr\)\{[\d-]+\}|begin\{tabular\}\{\w+\})"
    rows = (re.sub(rules, "", row).strip() for row in body.split(r"\\"))
    return [[cell.strip() for cell in row.split("&")] for row in rows if row]


def plain(cell: str) -> str:
    """LaTeX as the words and numbers it prints."""
    cell = re.sub(r"\\(mathbf|textbf)\{([^{}]*)\}", r"\2", cell.replace("\t", " "))
    for mark, printed in {
        r"^{\dagger}": "",
        r"\SCSE{}": "SCSE",
        r"^\star": "*",
        r"\omega": "ω",
        r"\Delta": "Δ",
        r"\pm": "±",
        r"\times 10^{-6}": "e-6",
        r"\ge": "≥",
        r"\%": "%",
        "$": "",
    }.items():
        cell = cell.replace(mark, printed)
    return cell.strip()


def as_number(cell: str) -> Number | None:
    match = re.fullmatch(r"([\d.]+(?:e-\d+)?)(?:±([\d.]+))?", cell)
    return (float(match[1]), float(match[2]) if match[2] else None) if match else None
