"""Any runs beside each other: mean ± standard deviation over seeds, grouped by the settings that differ.

RUNS are run folders, folders that hold runs, or record files. Everything that was evaluated and has the metric becomes
a column: each depth or budget of each task on each text. Evaluations of different text, or of the same text with
another tokenizer, never share a column. Runs without an evaluation are shown as missing; those that were evaluated by
other metrics only are counted below the table.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from scse.cli.common import Arguments, add_json, print_json
from scse.cli.tables import print_table
from scse.cli.text import print_text
from scse.errors import UserError, checked_choice

if TYPE_CHECKING:
    from scse.records import Record
    from scse.records.comparison import Comparison, Evaluation, Row, Settings

# Settings that are worth saying where all rows share them.
SAID = ("family", "corpus", "tokenizer", "steps", "lr", "max_loops")
log = logging.getLogger("scse")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="run folders, folders of runs, or record files")
    parser.add_argument("--metric", default="ppl", metavar="M", help="what to compare (default: ppl)")
    parser.add_argument("--task", metavar="T", help="only this task, such as perplexity or completion")
    add_json(parser)


def run(args: Arguments) -> None:
    from scse.files import expand
    from scse.records import read_records
    from scse.records.comparison import compare
    from scse.records.statistics import DEPTH_TOLERANCE
    from scse.report.write import record_files

    paths = [expand(text) for text in args.runs]
    files = record_files(paths)
    records = read_records(files)
    others = list(unevaluated(paths, files))
    if not records:
        raise UserError(f"there are no records in {', '.join(args.runs)}; evaluate a run first, for example: scse eval")
    refuse_unknown(records, args.metric, args.task)
    found = compare(records, args.metric, args.task, others)
    if args.json:
        print_json(as_json(found, args.metric))
        return
    rest = [name for name in reversed(found.differing) if name not in found.telling()]
    print_table(shown(found), title=title(found, args.metric), spare=rest)
    if unequal := found.at_other_depths():
        said = "; ".join(found.headers()[column] for column in unequal)
        print_text(f"not at the same compute, mean depths differ by more than {100 * DEPTH_TOLERANCE:.0f} %: {said}")
    if common := in_common(found):
        print_text(common)
    if found.aside:
        print_text(left_aside(found, args.metric))
    if found.tokens_differ():
        print_text("columns of different tokens (another text or tokenizer) cannot be compared with each other")
    if len(records) < sum(len(read_records([path])) for path in files):
        print_text("some evaluations are in more than one file; the last one read counts")


def refuse_unknown(records: Sequence[Record], metric: str, task: str | None) -> None:
    tasks = {record.identity["task"] for record in records}
    if task is not None:
        checked_choice("task", task, sorted(tasks))
    there = sorted({name for r in records if task in (None, r.identity["task"]) for name in r.metrics})
    checked_choice("metric", metric, there)


def unevaluated(paths: Iterable[Path], files: Iterable[Path]) -> Iterable[tuple[Settings, int]]:
    """Runs in the folders given that have no record file: their settings and seeds."""
    from scse.files import find_below, read_json
    from scse.records import FILE

    recorded = {path.parent.resolve() for path in files}
    for config in sorted({found for path in paths if path.is_dir() for found in find_below(path, "config.json")}):
        folder = config.parent
        if folder.resolve() in recorded or (folder / FILE).exists():
            continue
        try:
            if "train" in read_json(config):
                yield described(folder)
        except UserError as damage:
            log.warning("%s is left out: %s", folder, damage)


def described(folder: Path) -> tuple[Settings, int]:
    from scse.records.comparison import flat
    from scse.runs.folder import read_run_config  # loads torch

    config, _ = read_run_config(folder)
    return flat(config.model.to_dict(), config.protocol(), config.steps), config.seed


def title(found: Comparison, metric: str) -> str:
    """The metric, and the text if there is only one."""
    texts = {(column.dataset, column.split, column.limit) for column in found.columns}
    where = ""
    if len(texts) == 1:
        (dataset, split, limit) = texts.pop()
        where = f" on {dataset} {split}".rstrip() + (f", first {limit}" if limit else "")
    return f"{metric}{where}: mean ± standard deviation (seeds)"


def in_common(found: Comparison) -> str:
    """'all runs: family scse, steps 400', or nothing."""
    common = [f"{name} {PurePath(str(found.shared[name])).name}" for name in SAID if name in found.shared]
    return f"all runs: {', '.join(common)}" if common else ""


def left_aside(found: Comparison, metric: str) -> str:
    """'not here: 3 runs without ppl; what was measured of them: accuracy, exact (--metric)'"""
    runs = sum(len(row.seeds) for row in found.aside)
    others = ", ".join(sorted(set().union(*(row.metrics for row in found.aside))))
    count = "1 run" if runs == 1 else f"{runs} runs"
    return f"not here: {count} without {metric}; what was measured of them: {others} (--metric)"


def shown(found: Comparison) -> list[dict[str, Any]]:
    """A row for people: what differs, then the numbers."""
    rows, headers = [], found.headers()
    named = sorted(found.differing, key=lambda name: name != "family") or ["family"]
    digits = {column: decimals(found, column) for column in found.columns}
    for row in found.rows:
        labels = {name: label(row.settings.get(name, "default")) for name in named}
        numbers = {headers[c]: cell(row, c, digits[c]) for c in found.columns}
        rows.append({**labels, **numbers})
    return rows


def label(value: object) -> object:
    """A setting as it is; the options of a problem as name=value."""
    return " ".join(f"{name}={part}" for name, part in value.items()) if isinstance(value, dict) else value


def cell(row: Row, column: Evaluation, digits: int) -> str:
    """'12.34 ± 0.05 (3)', with the mean depth where it was adaptive."""
    from scse.report.wording import loops, measured

    summary, depth = row.summary(column), row.realised(column)
    if summary is None:
        return "missing"
    text = measured(summary, digits, len(row.seeds))
    return text if depth is None else f"{text}, {loops(depth)}"


def decimals(found: Comparison, column: Evaluation) -> int:
    """Two digits for numbers in the tens and above, four below."""
    means = [abs(summary.mean) for row in found.rows if (summary := row.summary(column)) is not None]
    return 2 if max(means, default=0.0) >= 10 else 4


def as_json(found: Comparison, metric: str) -> dict[str, Any]:
    """Every cell in full; one seed has no deviation."""
    rows, headers = [], found.headers()
    for row in found.rows:
        cells = []
        for column in found.columns:
            one: dict[str, Any] = {"column": headers[column], "missing": row.missing(column)}
            one |= {"mean": None, "sd": None, "seeds": []}
            if (summary := row.summary(column)) is not None:
                sd = summary.sd if len(summary.seeds) > 1 else None
                one |= {"mean": summary.mean, "sd": sd, "seeds": list(summary.seeds)}
            if (depth := row.realised(column)) is not None:
                one["mean_depth"] = depth
            cells.append(one)
        rows.append({"settings": {name: row.settings.get(name) for name in found.differing}, "results": cells})
    columns = [{"column": headers[c], **vars(c)} for c in found.columns]
    aside = [{"settings": row.settings, "metrics": sorted(row.metrics)} for row in found.aside]
    return {"metric": metric, "shared": found.shared, "columns": columns, "rows": rows, "aside": aside}
