"""Quality of a run at fixed depths, all from one unroll: perplexity on text, accuracy by difficulty on a problem.

Windows do not overlap, the last partial one is kept, and every token counts once. Each depth is also appended to
RUN/records.jsonl with everything needed to tell what was evaluated. With --cache, every token instead sees those before
it through a cache, as in generation: 'exact' changes nothing, 'shared' and 'last-N' are approximations.

On a run that was trained on a problem, 'accuracy' is the share of right answers and 'exact' that of examples without a
wrong one. By default the answers are as hard as the hardest trained on, then two and four times that as far as a
sequence has room, and 'all' of the trained difficulties together; --difficulty chooses others.
"""

from __future__ import annotations

import argparse

from scse.cli.common import (
    Arguments,
    add_compile,
    add_evaluation,
    add_precision,
    opened_together,
    positive_ints,
    print_rows,
    require_positive,
)

DEPTHS = [1, 2, 4, 8, 12, 16, 24, 32, 48]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--depths", type=positive_ints, default=DEPTHS, metavar="T,T", help="loop depths")
    parser.add_argument("--cache", metavar="C", help="through a cache: exact, shared or last-N")
    parser.add_argument(
        "--difficulty", type=positive_ints, metavar="N,N", help="of a problem: how hard the answers are"
    )
    add_precision(parser)
    add_compile(parser)
    add_evaluation(parser)


def run(args: Arguments) -> None:
    from scse.errors import UserError
    from scse.machine import keep_freed_memory
    from scse.tasks.accuracy import Accuracy
    from scse.tasks.perplexity import CachedPerplexity, Perplexity

    require_positive(args, "batch", "limit")
    if args.difficulty and args.cache:
        raise UserError("--difficulty counts right answers and --cache measures perplexity; leave one of them out")
    keep_freed_memory()
    with opened_together(args) as (opened, selection):
        if args.difficulty or (opened.config.problem and not args.cache):
            found = Accuracy().at(opened, selection, args.depths, args.difficulty)
        elif not args.cache:
            found = Perplexity().at(opened, selection, args.depths)
        elif opened.here.leads:
            found = CachedPerplexity().at(opened, selection, args.depths, args.cache)
        else:
            return
        found.keep(opened)
        if opened.here.leads:
            print_rows(found.rows, args.json, title=found.title)
