"""What the recurrence does at its anchor, step by step, on ordinary trajectories of a run.

'bias_ratio' is R_t, the energy of the forcing bias T_t(0; e) over that of the realised update; 'raw' is before the
mask. 'anchor_energy' is the mean square of the deviation. 'gain' is the random-direction gain at the steps of --gain.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from scse.cli.common import Arguments, add_evaluation, print_rows, require_positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--steps", type=int, default=48, metavar="T", help="steps to diagnose (default 48)")
    parser.add_argument("--gain", default="first,last", metavar="T,T", help="steps of the gain (default first,last)")
    parser.add_argument("--batches", type=int, default=2, metavar="N", help="batches to average over (default 2)")
    add_evaluation(parser)


def run(args: Arguments) -> None:
    from scse.diagnostics import diagnose
    from scse.evaluation.runs import open_run
    from scse.experiments.records import FILE, append_records, identity, new_record
    from scse.machine import keep_freed_memory
    from scse.progress import progress

    require_positive(args, "steps", "batches", "batch")
    gains = gain_steps(args.gain, args.steps)
    keep_freed_memory()
    opened = open_run(args.run)
    corpus = opened.corpus(args.data, args.data_dir, args.cache_dir, progress=not args.quiet)
    split = corpus.split(args.split)
    with progress("diagnosing", args.steps * args.batches, "steps", enabled=not args.quiet) as meter:
        found = diagnose(opened.model, split.tokens, args.steps, args.batch, args.batches, gains, meter)
    about = {"dataset": corpus.name, "split": split.name, "limit": args.batch * args.batches, "tag": args.tag}
    records = []
    for row in found:
        numbers = {name: value for name, value in asdict(row).items() if name != "step" and value is not None}
        who = identity(opened.config, opened.step, depth=row.step, task="diagnose", **about)
        records.append(new_record(who, numbers, split.digest))
    append_records(Path(args.run) / FILE, records)
    rows = [asdict(row) for row in found]
    if not args.json:
        chosen = {0, 1, 2, 4, 8, 16, 24, 32, args.steps - 1}
        rows = [{k: "" if v is None else v for k, v in row.items()} for row in rows if row["step"] in chosen]
    print_rows(rows, args.json, title=f"{args.run} on {corpus.name} {split.name}")


def gain_steps(text: str, steps: int) -> list[int]:
    """'first,last' or step numbers below `steps`."""
    from scse.errors import UserError

    names = {"first": 0, "last": steps - 1}
    try:
        chosen = [names[part] if part in names else int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--gain takes step numbers, 'first' or 'last', separated by commas, got '{text}'") from None
    if not all(0 <= step < steps for step in chosen):
        raise UserError(f"--gain asks for a step outside 0 … {steps - 1}; raise --steps or choose another")
    return chosen
