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
from typing import TYPE_CHECKING

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
from scse.config.use import DEPTHS

if TYPE_CHECKING:
    from scse.runs import Run
    from scse.tasks import Evaluated, Selection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--depths", type=positive_ints, default=DEPTHS, metavar="T,T", help="loop depths")
    parser.add_argument("--cache", metavar="C", help="through a cache: exact, shared or last-N")
    parser.add_argument(
        "--difficulty", type=positive_ints, metavar="N,N", help="of a problem: how hard the answers are"
    )
    parser.add_argument("--task", metavar="N", help="another task of depths by name, such as one of your own")
    add_precision(parser)
    add_compile(parser)
    add_evaluation(parser)


def run(args: Arguments) -> None:
    from scse.errors import UserError
    from scse.machine import keep_freed_memory
    from scse.tasks import TASKS

    require_positive(args, "batch", "limit")
    ways = [name for name in ("task", "difficulty", "cache") if getattr(args, name)]
    if len(ways) > 1:
        raise UserError(f"--{ways[0]} and --{ways[1]} each choose what is measured; keep one of them")
    if args.task and not TASKS.find(args.task).counts_loops:
        raise UserError(f"the task '{args.task}' has no depths; it has a command of its own, or a column in a suite")
    keep_freed_memory()
    with opened_together(args) as (opened, selection):
        found = evaluated(args, opened, selection)
        if found is None:
            return
        found.keep(opened)
        if opened.here.leads:
            print_rows(found.rows, args.json, title=found.title)


def evaluated(args: Arguments, opened: Run, selection: Selection) -> Evaluated | None:
    """What was asked for; None in a process that has no part in it."""
    from scse.tasks import TASKS, plainly
    from scse.tasks.accuracy import Accuracy
    from scse.tasks.columns import loops
    from scse.tasks.perplexity import CachedPerplexity

    if args.task:
        task = TASKS.find(args.task)
        columns = loops(*args.depths, task=task.name)
        return task.evaluate(opened, selection, columns) if task.spreads or opened.here.leads else None
    if args.cache:
        return CachedPerplexity().at(opened, selection, args.depths, args.cache) if opened.here.leads else None
    if args.difficulty:
        return Accuracy().at(opened, selection, args.depths, args.difficulty)
    return plainly(opened, selection, args.depths)
