"""Adaptive depth: thresholds calibrated on validation for mean loop budgets, evaluated on test in two modes.

'offline' is the paper's accounting: everything runs to the ceiling, and each example is read where it would stop; its
seconds are those of the full trace. 'online' is real early exit: examples leave the batch when they stop and waiting
ones take their place. Both make the same decisions. 'token' lets single tokens stop: it saves loops, not yet time.
'mean_depth' is the depth that was realised, and 'static' the fixed depth nearest to it: compare at equal compute.
Over whole splits even a small model takes minutes: eight for one of the demo's on two cores. '--limit 64' with
'--mode offline' takes half a minute, and thresholds are still calibrated on enough text.
"""

from __future__ import annotations

import argparse
import logging
import sys
from typing import TYPE_CHECKING

from scse.cli.common import (
    Arguments,
    add_compile,
    add_evaluation,
    add_precision,
    add_rule,
    opened_together,
    positive_ints,
    print_json,
    require_picture,
    require_positive,
)
from scse.cli.tables import print_table
from scse.config.adaptive import EXAMPLE_MODES, AdaptiveSettings
from scse.tasks.adaptive import CALIBRATION_WINDOWS

if TYPE_CHECKING:
    from scse.tasks import Evaluated

log = logging.getLogger("scse")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    usual = ",".join(map(str, AdaptiveSettings.budgets))
    parser.add_argument("--budgets", type=positive_ints, metavar="B,B", help=f"mean loops (default: {usual})")
    parser.add_argument(
        "--ceiling", type=int, default=AdaptiveSettings.ceiling, metavar="T", help="most loops of an example"
    )
    add_rule(parser)
    parser.add_argument("--quality", type=float, metavar="P", help="instead: at most P %% above the best perplexity")
    parser.add_argument(
        "--calibrate",
        type=int,
        metavar="N",
        help=f"validation windows to choose thresholds on (default: all; with --limit at least {CALIBRATION_WINDOWS})",
    )
    parser.add_argument(
        "--mode", metavar="M", help=f"offline, online or token (default: {' and '.join(EXAMPLE_MODES)})"
    )
    parser.add_argument("--picture", metavar="P", help="of a problem: loops taken over loops needed (.png or .svg)")
    add_precision(parser)
    add_compile(parser)
    add_evaluation(parser)


def run(args: Arguments) -> None:
    from scse.errors import UserError
    from scse.machine import keep_freed_memory
    from scse.problems import PROBLEMS
    from scse.tasks.adaptive import Adaptive, calibration_windows

    require_positive(args, "ceiling", "batch", "limit", "calibrate")
    require_picture("--picture", args.picture)
    if args.quality is not None and args.budgets:
        raise UserError("--budgets and --quality each say what thresholds are chosen for; keep one of them")
    if args.quality is not None and args.mode == "token":
        raise UserError("--quality is calibrated for whole examples; use it with --mode offline or online")
    settings = AdaptiveSettings(
        rule=args.rule,
        budgets=tuple(dict.fromkeys(args.budgets or AdaptiveSettings.budgets)),
        quality=args.quality,
        ceiling=args.ceiling,
        calibration=args.calibrate or calibration_windows(args.limit),
        modes=EXAMPLE_MODES if args.mode is None else (args.mode,),
    )
    keep_freed_memory()
    with opened_together(args) as (opened, selection):
        if args.picture and opened.config.corpus not in PROBLEMS:
            raise UserError("--picture needs a run on a problem: of text nobody knows how many loops it needs")
        found = Adaptive().at(opened, selection, settings).keep(opened)
    if not opened.here.leads:
        return
    if args.json:
        print_json(found.rows)
    else:
        print_adaptive(found)
    if args.picture:
        draw(found, PROBLEMS.find(opened.config.corpus).step, args)
    for fault in found.faults:
        log.warning("%s", fault)


def print_adaptive(found: Evaluated) -> None:
    """The rows; of a problem, the loops by difficulty in a table of their own."""
    from scse.tasks.base import without

    print_table([without(row, "by_difficulty") for row in found.rows], title=found.title)
    loops = [
        {"budget": row["budget"], "mode": row["mode"], **row["by_difficulty"]}
        for row in found.rows
        if "by_difficulty" in row
    ]
    if loops:
        print_table(loops, title="Mean loops by difficulty of the hardest answer (mode token: of each answer)")


def draw(found: Evaluated, step: str, args: Arguments) -> None:
    """Loops taken over loops needed, a line for each budget; 'online' decides as 'offline' does: one line for both."""
    from scse.files import expand
    from scse.report.exit_depths import draw_exit_depths
    from scse.report.figures import save_figure

    lines: dict[str, dict[int, float]] = {}
    for row in found.rows:
        label = f"budget {row['budget']}{', every answer by itself' * (row['mode'] == 'token')}"
        lines.setdefault(label, {int(steps): mean for steps, mean in row.get("by_difficulty", {}).items()})
    whose = "an answer" if args.mode == "token" else "an example, by its hardest answer"
    save_figure(draw_exit_depths(lines, step, f"mean loops taken by {whose}"), expand(args.picture))
    print(f"picture: {args.picture}", file=sys.stderr if args.json else sys.stdout)
