"""What the forcing bias b_t = T_t(0; e) did to a trajectory and to the loss, by the paper's counterfactual theory.

From the state after --from loops, a twin trajectory takes the same steps with b_t subtracted. After --to loops the two
differ by E_T, which is exactly the sum of every step's forcing carried forward (p_{T,k}). Negative loss numbers mean
that the forcing helped. Recurrences with a zero-deviation mask are analysed on the raw map before it, as the mask is a
jump. docs/diagnostics.md explains every number.
"""

from __future__ import annotations

import argparse

from scse.cli.common import (
    Arguments,
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from scse.tasks.anchor import Theory

    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--from", dest="first", type=int, default=Theory.first, metavar="T", help="shared loops")
    parser.add_argument("--to", dest="last", type=int, default=Theory.last, metavar="T", help="the horizon")
    parser.add_argument("--inputs", type=int, default=Theory.inputs, metavar="N", help="windows, one by one")
    parser.add_argument("--order", type=int, default=Theory.order, metavar="N", help="highest order of the vectors")
    parser.add_argument("--figure", metavar="PICTURE", help="the attribution (default RUN/theory.png)")
    add_device(parser)
    add_text(parser)


def run(args: Arguments) -> None:
    from scse.errors import UserError
    from scse.machine import keep_freed_memory
    from scse.report.diagnostics import attribution_figure
    from scse.tasks.anchor import Theory

    require_positive(args, "inputs", "order")
    if not 0 <= args.first < args.last:
        raise UserError(f"--from must be at least 0 and below --to, got {args.first} and {args.last}")
    figure = args.figure or str(expand(args.run) / "theory.png")
    require_picture("--figure", figure)
    keep_freed_memory()
    opened = open_chosen(args.run, args, float64=True)
    found = Theory().at(opened, selection_of(args), args.first, args.last, args.inputs, args.order).keep(opened)
    (record,) = found.records
    steps, verdict = record.facts["steps"], record.facts["verdict"]
    attribution_figure(steps, verdict, expand(figure))
    used = "raw" if opened.model.recurrence.mask.zeroes_at_anchor else "as used"
    if args.json:
        span = {"from": args.first, "to": args.last, "map": used}
        numbers = {"mean": record.metrics, "inputs": found.rows, "steps": steps}
        print_json({**span, "verdict": verdict, **numbers, "figure": figure})
        return
    print_table(found.rows, title=found.title)
    print_text(f"map: {used}" + (" (before the mask, which is a jump)" if used == "raw" else " (it has no mask)"))
    print_text(f"verdict: {verdict}\nfigure: {figure}")
