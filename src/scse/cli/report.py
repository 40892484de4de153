"""Tables, figures and claims from records: one self-contained page, with every table and figure as a file beside it.

RECORDS are record files, or folders searched for records.jsonl. The report reads nothing else: runs that are missing
show as missing. Write it as often as you like, also while a suite is running.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from scse.cli.common import Arguments, add_json, print_rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("records", nargs="*", default=["runs"], metavar="RECORDS", help="files or folders (runs)")
    parser.add_argument("--out", required=True, metavar="DIR", help="the report's folder")
    parser.add_argument("--preset", default="paper", metavar="P", help="paper (default) or mini: the size of the runs")
    parser.add_argument("--data", metavar="D", help="the corpus that took the place of every other")
    parser.add_argument("--suites", metavar="A,B", help="only these suites (default: all)")
    add_json(parser)


def run(args: Arguments) -> None:
    from scse.errors import UserError, checked_choice
    from scse.experiments.records import FILE, read_records
    from scse.experiments.suites import PRESETS, SUITES
    from scse.files import expand
    from scse.report.write import record_files, write_report

    preset = PRESETS[checked_choice("preset", args.preset, PRESETS)]
    if args.data is not None:
        from scse.data import settled_corpus

        preset = replace(preset, data=settled_corpus(args.data))
    wanted = list(SUITES) if args.suites is None else dict.fromkeys(args.suites.split(","))
    suites = [SUITES[checked_choice("suite", name, SUITES)] for name in wanted]
    records = read_records(record_files([expand(text) for text in args.records]))
    if not records:
        raise UserError(
            f"there are no records in {', '.join(args.records)}; evaluate a run first, it writes its {FILE}"
        )
    out = expand(args.out)
    parts = write_report(suites, preset, records, out)
    rows = [
        {"suite": part.suite, "state": part.state, "numbers": f"{part.found} of {part.wanted}", **part.verdicts}
        for part in parts
    ]
    print_rows(rows, args.json, title=f"{len(records)} records, preset '{preset.name}'")
    if not any(part.found for part in parts):
        hint = (
            "give --preset mini and --data for runs at that size" if not preset.mini else "give --data as they had it"
        )
        print(f"none of these records belongs to a suite at preset '{preset.name}'; {hint}", file=sys.stderr)
    print(f"report: {out / 'index.html'}", file=sys.stderr if args.json else sys.stdout)
