"""Write `paper_values.json` from the LaTeX source of the paper.

    python tests/suites/paper_source.py PATH/scse.tex

A sentence that a test expects and the source lacks is named, and nothing is written.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from paper import VALUES, digest

REMARK = 5  # beside a row's label, a cell of more words than this is prose and stays in the paper


def parse(source: str, label: str) -> dict[str, Any]:
    """The tabular that belongs to a label."""
    end = source.index(rf"\label{{tab:{label}}}")
    begin = source.rindex(r"\begin{tabular}", 0, end)
    body = source[begin : source.index(r"\end{tabular}", begin)]
    head, *parts = body.split(r"\midrule")
    *over, last = lines(head)
    spans = (re.fullmatch(r"\\multicolumn\{(\d+)\}\{c\}\{(.*)\}", cell) for line in over for cell in line)
    above = [(int(span[1]), plain(span[2])) for span in spans if span]
    rows, group = [], ""
    for cells in lines("".join(parts)):
        if heading := re.fullmatch(r"\\multicolumn\{\d+\}\{l\}\{(.*)\}", cells[0]):
            group = plain(heading[1])
        elif len(cells) > 1:
            remarks = (cell if len(cell.split()) <= REMARK else "" for cell in cells[1:])
            rows.append([group, *map(plain, (cells[0], *remarks))])
    return {"above": above, "headers": [plain(cell) for cell in last[1:]], "rows": rows}


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


def extract(source: str, tables: list[str], sentences: list[str]) -> dict[str, Any]:
    missing = [sentence for sentence in sentences if sentence not in source]
    if missing:
        raise SystemExit("not in the paper:\n" + "\n".join(missing))
    return {
        "tables": {label: parse(source, label) for label in tables},
        "sentences": sorted({digest(sentence) for sentence in sentences}),
    }


def as_text(values: dict[str, Any]) -> str:
    """JSON with each row of a table on a line of its own, so that a change shows where it is."""
    text = json.dumps(values, ensure_ascii=False)
    return re.sub(r'(?<=\]), (?=\["|"rows)|(?<=\}), (?=")', ",\n", text) + "\n"


def main(path: str) -> None:
    from test_paper_text import expected_sentences
    from test_paper_values import FROM_TABLES

    values = extract(Path(path).read_text("utf-8"), FROM_TABLES, list(expected_sentences()))
    VALUES.write_text(as_text(values), "utf-8")
    print(f"{VALUES}: {len(values['tables'])} tables, {len(values['sentences'])} sentences")


if __name__ == "__main__":
    main(sys.argv[1])
