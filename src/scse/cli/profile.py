"""What each depth costs at inference on this machine: latency of a batch, tokens per second, peak allocated memory.

'spread_ms' is the distance between the quartiles of the repeated measurements, 'peak_allocated_mib' counts weights and
activations.
"""

from __future__ import annotations

import argparse

from scse.cli.common import (
    Arguments,
    add_compile,
    add_json,
    add_precision,
    open_chosen,
    positive_ints,
    print_rows,
    require_positive,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from scse.tasks.base import PROFILED_SEQUENCES
    from scse.tasks.costs import REPEATS

    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--depths", type=positive_ints, default=[1, 8, 48], metavar="T,T", help="loop depths")
    parser.add_argument("--batch", type=int, default=PROFILED_SEQUENCES, metavar="N", help="sequences at a time")
    parser.add_argument("--length", type=int, metavar="L", help="tokens of each (default: the model's context)")
    parser.add_argument("--repeats", type=int, default=REPEATS, metavar="N", help="measurements after warm-up")
    parser.add_argument("--tag", default="", metavar="TEXT", help="a label kept in the record")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    add_precision(parser)
    add_compile(parser)
    add_json(parser)


def run(args: Arguments) -> None:
    from scse.machine import keep_freed_memory
    from scse.tasks.costs import Profile

    require_positive(args, "batch", "length", "repeats")
    keep_freed_memory()
    opened = open_chosen(args.run, args)
    found = Profile().at(opened, args.depths, args.batch, args.length, args.repeats, args.tag, show=not args.quiet)
    found.keep(opened)
    print_rows(found.rows, args.json, title=found.title)
