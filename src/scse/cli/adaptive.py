"""Adaptive depth: thresholds calibrated on validation for mean loop budgets, evaluated on test in two modes.

'offline' is the paper's accounting: everything runs to the ceiling, and each example is read where it would stop; its
seconds are those of the full trace. 'online' is real early exit: examples leave the batch when they stop and waiting
ones take their place. Both make the same decisions. 'token' lets single tokens stop: it saves loops, not yet time.
'static' is the fixed depth of the same budget.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from scse.cli.common import Arguments, add_evaluation, positive_ints, print_rows, require_positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--budgets", type=positive_ints, default=[8, 16, 24], metavar="B,B", help="default 8,16,24")
    parser.add_argument("--ceiling", type=int, default=48, metavar="T", help="most loops of an example (default 48)")
    parser.add_argument("--rule", default="update", metavar="R", help="update (the paper's), relative or kl")
    parser.add_argument("--quality", type=float, metavar="P", help="instead: at most P %% above the best perplexity")
    parser.add_argument("--mode", metavar="M", help="offline, online or token (default: offline and online)")
    add_evaluation(parser)


def run(args: Arguments) -> None:
    from scse.errors import UserError
    from scse.evaluation.budgets import EXAMPLE_MODES, AdaptiveEvaluation, AdaptiveSettings
    from scse.evaluation.runs import open_run
    from scse.experiments.records import FILE, append_records, identity, new_record
    from scse.machine import keep_freed_memory

    require_positive(args, "ceiling", "batch", "limit")
    if args.quality is None and max(args.budgets) > args.ceiling:
        raise UserError(f"a budget of {max(args.budgets)} is above the ceiling of {args.ceiling}; raise --ceiling")
    if args.quality is not None and args.mode == "token":
        raise UserError("--quality is calibrated for whole examples; use it with --mode offline or online")
    settings = AdaptiveSettings(
        rule=args.rule,
        budgets=tuple(dict.fromkeys(args.budgets)),
        quality=args.quality,
        ceiling=args.ceiling,
        batch=args.batch,
        limit=args.limit,
        modes=EXAMPLE_MODES if args.mode is None else (args.mode,),
    )
    keep_freed_memory()
    opened = open_run(args.run)
    evaluation = AdaptiveEvaluation(opened.model, settings, show=not args.quiet)
    corpus = opened.corpus(args.data, args.data_dir, args.cache_dir, progress=not args.quiet)
    validation, split = corpus.split("validation"), corpus.split(args.split)
    rows = evaluation.run(validation.tokens, split.tokens)
    target = {} if args.quality is None else {"quality": args.quality}
    calibration = {"rule": args.rule, "ceiling": args.ceiling, "calibrated_on": "validation", **target}
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
            adaptive={**calibration, "budget": None if target else row.budget, "mode": row.mode},
        )
        values = asdict(row)
        histogram = values.pop("histogram")
        numbers = {name: value for name, value in values.items() if name not in ("budget", "mode")}
        records.append(new_record(about, numbers, split.digest, histogram=histogram))
    append_records(Path(args.run) / FILE, records)
    shown = [{name: value for name, value in asdict(row).items() if name != "histogram"} for row in rows]
    print_rows(shown, args.json, title=f"{args.run} on {corpus.name} {split.name}, rule '{args.rule}'")
