"""What the forcing bias b_t = T_t(0; e) did to a trajectory and to the loss, by the paper's counterfactual theory.

From the state after --from loops, a twin trajectory takes the same steps with b_t subtracted. After --to loops the two
differ by E_T, which is exactly the sum of every step's forcing carried forward (p_{T,k}). Negative loss numbers mean
that the forcing helped. Recurrences with a zero-deviation mask are analysed on the raw map before it, as the mask is a
jump. docs/diagnostics.md explains every number.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scse.cli.common import Arguments, add_text, print_json, print_rows, require_picture, require_positive
from scse.cli.text import print_text

if TYPE_CHECKING:
    from scse.diagnostics.theory import InputTheory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--from", dest="first", type=int, default=8, metavar="T", help="shared loops")
    parser.add_argument("--to", dest="last", type=int, default=48, metavar="T", help="the horizon")
    parser.add_argument("--inputs", type=int, default=2, metavar="N", help="windows, one by one")
    parser.add_argument("--order", type=int, default=8, metavar="N", help="highest order of the vectors")
    parser.add_argument("--figure", metavar="PICTURE", help="the attribution (default RUN/theory.png)")
    add_text(parser)


def run(args: Arguments) -> None:
    from scse.diagnostics.theory import PASSES, theory
    from scse.errors import UserError
    from scse.evaluation.runs import open_run
    from scse.experiments.records import FILE, append_records, identity, new_record
    from scse.machine import keep_freed_memory
    from scse.progress import progress
    from scse.report.diagnostics import attribution_figure

    require_positive(args, "inputs", "order")
    if not 0 <= args.first < args.last:
        raise UserError(f"--from must be at least 0 and below --to, got {args.first} and {args.last}")
    figure = args.figure or str(Path(args.run) / "theory.png")
    require_picture("--figure", figure)
    keep_freed_memory()
    opened = open_run(args.run)
    corpus = opened.corpus(args.data, args.data_dir, args.cache_dir, progress=not args.quiet)
    split = corpus.split(args.split)
    work = PASSES * (args.last - args.first) * args.inputs
    with progress("theory", work, "steps", enabled=not args.quiet) as meter:
        found = theory(opened.model, split.tokens, args.first, args.last, args.inputs, meter, args.order)
    steps, rows, numbers = per_step(found, args.first), [input_row(n, x) for n, x in enumerate(found)], summary(found)
    verdict = average_verdict(found)
    attribution_figure(steps, verdict, Path(figure))
    about = {"dataset": corpus.name, "split": split.name, "limit": args.inputs, "tag": args.tag}
    span = {"from": args.first, "order": args.order}
    who = identity(opened.config, opened.step, depth=args.last, task="theory", settings=span, **about)
    append_records(Path(args.run) / FILE, [new_record(who, numbers, split.digest, steps=steps, verdict=verdict)])
    used = "raw" if opened.model.recurrence.mask.zeroes_at_anchor else "as used"
    if args.json:
        span = {"from": args.first, "to": args.last, "map": used}
        print_json({**span, "verdict": verdict, "mean": numbers, "inputs": rows, "steps": steps, "figure": figure})
        return
    print_rows(rows, as_json=False, title=f"{args.run}: forcing of steps {args.first} … {args.last - 1}")
    print_text(f"map: {used}" + (" (before the mask, which is a jump)" if used == "raw" else " (it has no mask)"))
    print_text(f"verdict: {verdict}\nfigure: {figure}")


def input_row(number: int, x: InputTheory) -> dict[str, Any]:
    """One input as numbers; `bound` is None where q ≥ 1 and the contraction corollary says nothing."""
    gap = x.loss_gap
    return {
        "input": number,
        "response": x.response,
        "theorem_residual": x.theorem_residual,
        "lemma_residual": x.lemma_residual,
        "order": x.order,
        "vector_residual": x.vector_residual,
        "q": x.contraction.q,
        "B": x.contraction.B,
        "bound": x.contraction.bound,
        "beta": x.beta,
        "coherence": x.coherence,
        "loss": gap.ordinary,
        "loss_without": gap.subtracted,
        "gap": gap.gap,
        "gap_residual": gap.residual,
        "slope": gap.slope,
        "verdict": x.verdict,
    }


def per_step(found: list[InputTheory], first: int) -> list[dict[str, float]]:
    """Means over the inputs for each step whose forcing was taken away."""
    columns = {
        name: sum(getattr(x, name) for x in found) / len(found) for name in ("forcing", "arriving", "along", "loss")
    }
    return [
        {"step": first + k, **{name: float(values[k]) for name, values in columns.items()}}
        for k in range(len(found[0].forcing))
    ]


def summary(found: list[InputTheory]) -> dict[str, float]:
    """Means over the inputs; residuals and q are the largest."""
    rows = [input_row(number, x) for number, x in enumerate(found)]
    worst = ("theorem_residual", "lemma_residual", "vector_residual", "gap_residual", "order", "q", "B")
    mean = ("response", "beta", "coherence", "loss", "loss_without", "gap", "slope")
    numbers = {name: float(max(row[name] for row in rows)) for name in worst}
    numbers |= {name: float(sum(row[name] for row in rows) / len(rows)) for name in mean}
    return numbers | {
        kind: float(sum(x.verdict == kind for x in found)) for kind in ("harmful", "neutral", "beneficial")
    }


def average_verdict(found: list[InputTheory]) -> str:
    """One sentence: the sign of the mean loss gap, and how many inputs agree."""
    from scse.diagnostics.theory import verdict

    gap = sum(x.loss_gap.gap for x in found) / len(found)
    counts = ", ".join(
        f"{sum(x.verdict == kind for x in found)} {kind}" for kind in ("harmful", "neutral", "beneficial")
    )
    return f"{verdict(gap)} on average: the forcing changes the loss by {gap:+.4g} nats per token ({counts})"
