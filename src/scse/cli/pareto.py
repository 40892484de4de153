"""Quality against cost for one or more runs: fixed depths and adaptive budgets, as a table and a picture.

FLOPs and cache bytes are per token, time per 1,000 tokens, all including the vocabulary head. 'depth' is the mean
number of loops taken, whatever the budget. 'best' names the costs in which no other point is both cheaper and better.
Give an unshared run beside looped ones to compare at equal FLOPs. All runs must share a tokenizer and are evaluated on
one text: other perplexities cannot be compared.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from scse.cli.common import (
    Arguments,
    add_compile,
    add_evaluation,
    add_precision,
    add_rule,
    open_chosen,
    positive_ints,
    print_rows,
    require_picture,
    require_positive,
    selection_of,
)
from scse.config.adaptive import AdaptiveSettings
from scse.errors import UserError
from scse.files import expand

if TYPE_CHECKING:
    from scse.evaluation.pareto import ParetoPoint
    from scse.runs import Run

log = logging.getLogger("scse")

COSTS = {"flops": "FLOPs", "ms_per_ktoken": "time", "cache_bytes": "cache"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    parser.add_argument("--depths", type=ints_or_none, default=[1, 2, 4, 8, 16], metavar="T,T", help="fixed, or 'none'")
    parser.add_argument("--budgets", type=ints_or_none, default=[4, 8], metavar="B,B", help="mean adaptive, or 'none'")
    parser.add_argument(
        "--ceiling", type=int, default=AdaptiveSettings.ceiling, metavar="T", help="most loops of an example"
    )
    add_rule(parser)
    parser.add_argument("--out", metavar="PICTURE", help="draw perplexity against FLOPs and time (.png or .svg)")
    add_precision(parser)
    add_compile(parser)
    add_evaluation(parser)


def ints_or_none(text: str) -> list[int]:
    """'4,8' -> [4, 8]; 'none' -> []"""
    return [] if text == "none" else positive_ints(text)


def run(args: Arguments) -> None:
    from scse.evaluation.pareto import frontier
    from scse.machine import keep_freed_memory
    from scse.report.figures import pareto_figure
    from scse.tasks.adaptive import calibration_windows
    from scse.tasks.costs import Pareto

    require_positive(args, "ceiling", "batch", "limit")
    require_picture("--out", args.out)
    if not args.depths and not args.budgets:
        raise UserError("neither depths nor budgets are left; give --depths or --budgets something but 'none'")
    budgets = tuple(dict.fromkeys(args.budgets))
    settings = AdaptiveSettings(
        rule=args.rule, budgets=budgets, ceiling=args.ceiling, calibration=calibration_windows(args.limit)
    )
    keep_freed_memory()
    runs = [open_chosen(folder, args) for folder in dict.fromkeys(args.runs)]
    require_one_text(runs, args.data)
    points: list[ParetoPoint] = []
    unreachable: list[tuple[Run, float]] = []
    for opened in runs:
        found, own, missed = Pareto().at(opened, selection_of(args), args.depths, settings)
        found.keep(opened)
        points += own
        unreachable += [(opened, budget) for budget in missed]
        for reason in missed.values():
            log.warning("%s: %s", opened.folder, reason)
    best = {label: frontier(points, cost) for cost, label in COSTS.items()}
    rows: list[dict[str, Any]] = [
        asdict(point) | {"best": ", ".join(label for label, found in best.items() if point in found)}
        for point in points
    ]
    if args.out and rows:
        pareto_figure(rows, expand(args.out))
    rows += [unreachable_row(opened, budget) for opened, budget in unreachable]
    print_rows(rows, args.json, title="Quality against cost")
    if args.out and points and not args.json:
        print(f"Picture: {args.out}")


def require_one_text(runs: Sequence[Run], data: str | None) -> None:
    """Perplexities of different texts, or of one text in different tokens, say nothing about each other."""
    texts = {opened.folder: (data or opened.config.corpus, opened.tokenizer.digest) for opened in runs}
    first, *others = texts
    for other in others:
        if texts[other][0] != texts[first][0]:
            raise UserError(
                f"{first} is of {texts[first][0]} and {other} of {texts[other][0]}: perplexities of different texts "
                "cannot be compared; give runs of one corpus, or one corpus for all with --data"
            )
        if texts[other] != texts[first]:
            raise UserError(
                f"{first} and {other} have different tokenizers: perplexities per token cannot be compared; "
                "give runs that share one"
            )


def unreachable_row(opened: Run, budget: float) -> dict[str, Any]:
    """A budget that no threshold reaches has its place in the table and no numbers."""
    about = {"run": str(opened.folder), "family": opened.model.config.family, "kind": "adaptive", "budget": budget}
    return about | dict.fromkeys(("depth", "ppl", *COSTS)) | {"best": "unreachable"}
