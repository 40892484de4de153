"""Tables, figures and claims from records: one self-contained page, with every table and figure as a file beside it.

RECORDS are record files, or folders searched for records.jsonl. The report reads nothing else: runs that are missing
show as missing. Write it as often as you like, also while a suite is running. Give the preset and text of the runs as
'scse suite' was given them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scse.cli.common import Arguments, add_json, print_rows, require_positive
from scse.cli.text import print_text

if TYPE_CHECKING:
    from scse.records import Record
    from scse.suites.suite import Preset, Suite


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("records", nargs="*", default=["runs"], metavar="RECORDS", help="files or folders (runs)")
    parser.add_argument("--out", required=True, metavar="DIR", help="the report's folder")
    parser.add_argument("--preset", default="mini", metavar="P", help="mini (default) or paper: the size of the runs")
    parser.add_argument("--data", metavar="D", help="the corpus they were trained on, if not the preset's")
    parser.add_argument("--steps", type=int, metavar="N", help="their number of steps, if not the preset's")
    parser.add_argument("--limit", type=int, metavar="N", help="the windows of an evaluation, if not the preset's")
    parser.add_argument("--suites", metavar="A,B", help="only these suites (default: all)")
    add_json(parser)


def run(args: Arguments) -> None:
    from scse.errors import UserError
    from scse.files import expand
    from scse.records import FILE, read_records
    from scse.report.elsewhere import listed, unused
    from scse.report.write import record_files, write_report
    from scse.suites import SUITES

    require_positive(args, "limit", "steps")
    preset = chosen_preset(args)
    names = SUITES.names() if args.suites is None else dict.fromkeys(args.suites.split(","))
    suites = [SUITES.find(name) for name in names]
    records = read_records(record_files([expand(text) for text in args.records]))
    if not records:
        raise UserError(f"there are no records in {', '.join(args.records)}; evaluate a run first: it writes a {FILE}")
    refuse_if_nothing_fits(suites, preset, records, args.preset)
    out = expand(args.out)
    parts = write_report(suites, preset, records, out)
    rows = [
        {"suite": part.suite, "state": part.state, "numbers": f"{part.found} of {part.wanted}", **part.verdicts}
        for part in parts
    ]
    print_rows(rows, args.json, title=f"{len(records)} records, preset '{preset.name}'")
    if left_out := unused(suites, preset, records):
        print_text(f"not shown, being of other runs or other evaluations: {listed(left_out)}", sys.stderr)
    print(f"report: {out / 'index.html'}", file=sys.stderr if args.json else sys.stdout)


def refuse_if_nothing_fits(suites: Sequence[Suite], preset: Preset, records: Sequence[Record], name: str) -> None:
    """A page without a number helps nobody: say what the records are of, and what would show them."""
    from scse.errors import UserError
    from scse.report.elsewhere import listed, remedy, sizes
    from scse.suites import SUITES
    from scse.suites.evidence import Shelf, gather

    shelf = Shelf(records, preset)
    if any(gather(suite, shelf).counts[0] for suite in suites):
        return
    there = listed(sizes(records)) or f"{len(records)} records, none of them a perplexity"
    others = [suite.name for suite in SUITES if gather(suite, shelf).counts[0]]
    options = f"--suites {','.join(others)}" if others else remedy(suites, name, records)
    way = f"give {options}" if options else "'scse compare' shows any runs"
    raise UserError(f"none of the records is of a run of these suites at preset '{name}' (there are: {there}); {way}")


def chosen_preset(args: Arguments) -> Preset:
    from scse.suites.presets import find_preset

    if args.data is None:
        return find_preset(args.preset, None, args.limit, args.steps)
    from scse.data import absolute_corpus

    return find_preset(args.preset, absolute_corpus(args.data), args.limit, args.steps)
