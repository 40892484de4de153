"""What the recurrence does at its anchor, step by step, on ordinary trajectories of a run.

'bias_ratio' is R_t, the energy of the forcing bias T_t(0; e) over that of the realised update; 'raw' is before the
mask. 'anchor_energy' is the mean square of the deviation. 'gain' is the random-direction gain at the steps of --gain.
"""

from __future__ import annotations

import argparse

from scse.cli.common import Arguments, add_evaluation, print_rows, require_positive, text_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--steps", type=int, default=48, metavar="T", help="steps to diagnose (default 48)")
    parser.add_argument("--gain", default="first,last", metavar="T,T", help="steps of the gain (default first,last)")
    parser.add_argument("--batches", type=int, default=2, metavar="N", help="batches to average over (default 2)")
    add_evaluation(parser)


def run(args: Arguments) -> None:
    from scse.evaluation.runs import open_run
    from scse.experiments.tasks import diagnosis, keep
    from scse.machine import keep_freed_memory

    require_positive(args, "steps", "batches", "batch")
    gains = gain_steps(args.gain, args.steps)
    keep_freed_memory()
    opened = open_run(args.run)
    found = keep(opened, diagnosis(opened, text_of(args), args.steps, args.batches, gains))
    rows = found.rows
    if not args.json:
        chosen = {0, 1, 2, 4, 8, 16, 24, 32, args.steps - 1}
        rows = [{k: "" if v is None else v for k, v in row.items()} for row in rows if row["step"] in chosen]
    print_rows(rows, args.json, title=found.title)


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
