"""LAMBADA: predict the last word of a passage. Perplexity and accuracy are over the tokens of the answers.

'word_ppl' is the perplexity per last word instead of per token of it: the number lm-eval prints. 'exact_accuracy' is
the share of passages whose last word is right in every token, lm-eval's 'acc'. Passages longer than the model's context
keep their end.
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from scse.tasks.completion import CORPUS

    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--depths", type=positive_ints, default=[8, 48], metavar="T,T", help="loop depths")
    add_precision(parser)
    add_compile(parser)
    add_evaluation(parser, unit="passages", data=CORPUS)


def run(args: Arguments) -> None:
    from scse.machine import keep_freed_memory
    from scse.tasks.completion import Completion

    require_positive(args, "batch", "limit")
    keep_freed_memory()
    with opened_together(args) as (opened, selection):
        found = Completion().at(opened, selection, args.depths).keep(opened)
        if opened.here.leads:
            print_rows(found.rows, args.json, title=found.title)
