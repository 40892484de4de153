"""What the recurrence does at its anchor, step by step, on ordinary trajectories of a run.

'bias_ratio' is R_t, the energy of the forcing bias T_t(0; e) over that of the realised update; 'raw' is before the
mask. 'anchor_energy' is the mean square of the deviation. 'input_dependence' is how far apart the states of two inputs
point, relative to their embeddings. At the steps of --gain: 'gain' is the random-direction gain, 'expansion' the most
that any direction grows, by power iteration ('expansion_residual' says how far that converged), 'stability' whether the
map contracts, is neutral or expands there. docs/diagnostics.md explains every number.

With --steering, instead: rollouts that start at the anchor, the forcing rays t·b(e), and what turning the injection
gain does to them, as a two-panel figure and the numbers under it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scse.cli.common import (
    Arguments,
    add_batch,
    add_device,
    add_text,
    open_chosen,
    print_json,
    require_picture,
    require_positive,
    selection_of,
)
from scse.cli.tables import print_table
from scse.cli.text import print_text
from scse.files import expand

if TYPE_CHECKING:
    from scse.runs import Run

ONLY_IN_JSON = ("bias_energy", "largest_anchor_energy", "expansion_residual")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from scse.tasks.anchor import BATCHES, STEERED_INPUTS, STEPS

    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="T", help="steps to diagnose")
    parser.add_argument("--gain", default="first,last", metavar="T,T", help="steps of the gain")
    parser.add_argument("--batches", type=int, default=BATCHES, metavar="N", help="batches to average over")
    parser.add_argument("--steering", metavar="PICTURE", help="anchor-started rollouts instead (.png or .svg)")
    parser.add_argument("--inputs", type=int, default=STEERED_INPUTS, metavar="N", help="windows of --steering")
    add_device(parser)
    add_batch(parser)
    add_text(parser)


def run(args: Arguments) -> None:
    from scse.machine import keep_freed_memory

    require_positive(args, "steps", "batches", "batch", "inputs")
    require_picture("--steering", args.steering)
    gains = gain_steps(args.gain, args.steps)
    keep_freed_memory()
    opened = open_chosen(args.run, args, float64=True)
    if args.steering:
        show_steering(args, opened)
    else:
        show_steps(args, opened, gains)


def show_steps(args: Arguments, opened: Run, gains: list[int]) -> None:
    from scse.errors import RunFailure
    from scse.tasks.anchor import Diagnose

    found = Diagnose().at(opened, selection_of(args), args.steps, args.batches, gains).keep(opened)
    if args.json:
        print_json(found.rows)
    else:
        chosen = {0, 1, 2, 4, 8, 16, 24, 32, args.steps - 1, *gains}
        known = {name for row in found.rows for name, value in row.items() if value is not None}
        shown = [
            {n: v for n, v in for_people(row).items() if n in known} for row in found.rows if row["step"] in chosen
        ]
        print_table(shown, title=found.title, spare=("beyond_trained_range",))
        print_text("\n".join(found.notes))
    if found.faults:
        raise RunFailure("; ".join(found.faults))


def show_steering(args: Arguments, opened: Run) -> None:
    from scse.report.anchor_start import draw_anchor_start
    from scse.report.figures import save_figure
    from scse.tasks.anchor import Steering

    found = Steering().at(opened, selection_of(args), args.steps, args.inputs).keep(opened)
    (record,) = found.records
    panels = record.facts["panels"]
    save_figure(draw_anchor_start(panels), expand(args.steering))
    if args.json:
        about = {"has_source": panels["has_source"], "figure": args.steering}
        print_json({"inputs": found.rows, "summary": record.metrics, **about})
        return
    print_table([for_people(row) for row in found.rows], title=found.title)
    print_text("\n".join([*found.notes, f"figure: {args.steering}"]))


def for_people(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a table: without what only programs read."""
    return {name: value for name, value in row.items() if name not in ONLY_IN_JSON}


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
