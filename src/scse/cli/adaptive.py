"""Adaptive depth: thresholds calibrated on validation for mean loop budgets, evaluated on test in two modes.

'offline' is the paper's accounting: everything runs to the ceiling, and each example is read where it would stop; its
seconds are those of the full trace. 'online' is real early exit: examples leave the batch when they stop and waiting
ones take their place. Both make the same decisions. 'static' is the fixed depth of the same budget.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from scse.cli.common import Arguments, add_data_folders, add_json, positive_ints, print_rows, require_positive

MODES = ("offline", "online")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--budgets", type=positive_ints, default=[8, 16, 24], metavar="B,B", help="default 8,16,24")
    parser.add_argument("--ceiling", type=int, default=48, metavar="T", help="most loops of an example (default 48)")
    parser.add_argument("--rule", default="update", metavar="R", help="update (the paper's), relative or kl")
    parser.add_argument("--mode", metavar="M", help="offline or online (default: both)")
    parser.add_argument("--data", metavar="D", help="another corpus, by name or path (default: the run's own)")
    parser.add_argument("--split", default="test", metavar="S", help="default test; calibration is on validation")
    parser.add_argument("--batch", type=int, default=32, metavar="N", help="windows at a time (default 32)")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N windows of each split")
    parser.add_argument("--tag", default="", metavar="TEXT", help="a label kept in the record")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    add_data_folders(parser)
    add_json(parser)


def run(args: Arguments) -> None:
    from scse.errors import UserError, checked_choice
    from scse.evaluation.budgets import AdaptiveSettings, evaluate_budgets
    from scse.evaluation.runs import open_run
    from scse.experiments.records import FILE, append_records, identity, new_record
    from scse.machine import keep_freed_memory

    require_positive(args, "ceiling", "batch", "limit")
    if max(args.budgets) > args.ceiling:
        raise UserError(f"a budget of {max(args.budgets)} is above the ceiling of {args.ceiling}; raise --ceiling")
    modes = MODES if args.mode is None else (checked_choice("mode", args.mode, MODES),)
    keep_freed_memory()
    opened = open_run(args.run)
    corpus = opened.corpus(args.data, args.data_dir, args.cache_dir, progress=not args.quiet)
    validation, split = corpus.split("validation"), corpus.split(args.split)
    settings = AdaptiveSettings(args.rule, tuple(dict.fromkeys(args.budgets)), args.ceiling, args.batch, args.limit)
    rows = evaluate_budgets(opened.model, validation.tokens, split.tokens, settings, modes, show=not args.quiet)
    calibration = {"rule": args.rule, "ceiling": args.ceiling, "calibrated_on": "validation"}
    records = []
    for row in rows:
        about = identity(
            opened.config,
            opened.step,
            dataset=corpus.name,
            split=split.name,
            depth=None,
            limit=args.limit,
            tag=args.tag,
            adaptive={**calibration, "budget": row.budget, "mode": row.mode},
        )
        values = asdict(row)
        histogram = values.pop("histogram")
        numbers = {name: value for name, value in values.items() if name not in ("budget", "mode")}
        records.append(new_record(about, numbers, split.digest, histogram=histogram))
    append_records(Path(args.run) / FILE, records)
    shown = [{name: value for name, value in asdict(row).items() if name != "histogram"} for row in rows]
    print_rows(shown, args.json, title=f"{args.run} on {corpus.name} {split.name}, rule '{args.rule}'")
