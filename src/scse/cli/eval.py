"""Perplexity of a run at fixed depths, all from one unroll of the model.

Windows do not overlap, the last partial one is kept, and every token counts once. Each depth is also appended to
RUN/records.jsonl with everything needed to tell what was evaluated.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from scse.cli.common import Arguments, add_evaluation, positive_ints, print_rows, require_positive

DEPTHS = [1, 2, 4, 8, 12, 16, 24, 32, 48]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--depths", type=positive_ints, default=DEPTHS, metavar="T,T", help="default 1,2,4,…,48")
    add_evaluation(parser)


def run(args: Arguments) -> None:
    from scse.evaluation import perplexity_over_depths
    from scse.evaluation.runs import open_run
    from scse.experiments.records import FILE, append_records, identity, new_record
    from scse.machine import keep_freed_memory

    require_positive(args, "batch", "limit")
    keep_freed_memory()
    opened = open_run(args.run)
    corpus = opened.corpus(args.data, args.data_dir, args.cache_dir, progress=not args.quiet)
    split = corpus.split(args.split)
    depths = list(dict.fromkeys(args.depths))
    results = perplexity_over_depths(
        opened.model, split.tokens, depths, batch=args.batch, limit=args.limit, show=not args.quiet
    )
    records = [
        new_record(
            identity(
                opened.config,
                opened.step,
                dataset=corpus.name,
                split=split.name,
                depth=result.depth,
                limit=args.limit,
                tag=args.tag,
            ),
            {"nll": result.nll, "ppl": result.ppl, "tokens": result.tokens},
            split.digest,
        )
        for result in results
    ]
    append_records(Path(args.run) / FILE, records)
    print_rows([asdict(result) for result in results], args.json, title=f"{args.run} on {corpus.name} {split.name}")
