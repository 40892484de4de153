"""Quality against cost for one or more runs: fixed depths and adaptive budgets, as a table and a picture.

FLOPs and cache bytes are per token, time per 1,000 tokens, all including the vocabulary head. 'best' names the costs in
which no other point is both cheaper and better. Give an unshared run beside looped ones to compare at equal FLOPs.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from scse.cli.common import Arguments, add_evaluation, positive_ints, print_rows, require_picture, require_positive

if TYPE_CHECKING:
    from scse.data import TokenSplit
    from scse.evaluation.pareto import ParetoPoint
    from scse.experiments.records import Record
    from scse.runs import Run

COSTS = {"flops": "FLOPs", "ms_per_ktoken": "time", "cache_bytes": "cache"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    parser.add_argument("--depths", type=positive_ints, default=[1, 2, 4, 8, 16], metavar="T,T", help="fixed depths")
    parser.add_argument("--budgets", type=positive_ints, default=[4, 8], metavar="B,B", help="mean adaptive budgets")
    parser.add_argument("--ceiling", type=int, default=48, metavar="T", help="most loops of an example (default 48)")
    parser.add_argument("--out", metavar="PICTURE", help="draw perplexity against FLOPs and time (.png or .svg)")
    add_evaluation(parser)


def run(args: Arguments) -> None:
    from scse.evaluation.pareto import ParetoEvaluation, frontier
    from scse.experiments.records import FILE, append_records
    from scse.machine import keep_freed_memory
    from scse.report.figures import pareto_figure
    from scse.runs import open_run

    require_positive(args, "ceiling", "batch", "limit")
    require_picture("--out", args.out)
    keep_freed_memory()
    points = []
    for folder in args.runs:
        opened = open_run(folder)
        corpus = opened.corpus(args.data, args.data_dir, args.cache_dir, progress=not args.quiet)
        split = corpus.split(args.split)
        evaluation = ParetoEvaluation(folder, opened.model, args.batch, args.limit, show=not args.quiet)
        found = evaluation.fixed(split.tokens, args.depths)
        found += evaluation.adaptive(corpus.split("validation").tokens, split.tokens, args.budgets, args.ceiling)
        append_records(Path(folder) / FILE, [record_of(point, opened, corpus.name, split, args) for point in found])
        points += found
    best = {label: frontier(points, cost) for cost, label in COSTS.items()}
    rows = [
        asdict(point) | {"best": ", ".join(label for label, found in best.items() if point in found)}
        for point in points
    ]
    if args.out:
        pareto_figure(rows, Path(args.out))
    print_rows(rows, args.json, title="Quality against cost")


def record_of(point: ParetoPoint, opened: Run, corpus: str, split: TokenSplit, args: Arguments) -> Record:
    from scse.experiments.records import identity, new_record

    fixed = point.kind == "fixed"
    about = identity(
        opened.config,
        opened.step,
        dataset=corpus,
        split=split.name,
        limit=args.limit,
        task="pareto",
        tag=args.tag,
        depth=int(point.depth) if fixed else None,
        adaptive=None if fixed else {"ceiling": args.ceiling, "mean_depth": point.depth},
    )
    numbers = {name: value for name, value in asdict(point).items() if name not in ("run", "family", "kind")}
    return new_record(about, numbers, split.digest)
