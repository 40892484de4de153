"""The main job in miniature: trains three families at the mini scale on the embedded corpus (the sources of Python's
standard library), then evaluates each at depths 1 to 48. A second call uses what is already there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from scse.cli.common import Arguments, add_json, print_rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="runs/demo", metavar="DIR", help="where the runs go (default: runs/demo)")
    parser.add_argument("--steps", type=int, metavar="N", help="optimiser steps of each run (default: 400)")
    parser.add_argument("--cache-dir", metavar="DIR", help="where tokens are cached (default: SCSE_CACHE)")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    add_json(parser)


def run(args: Arguments) -> None:
    from scse.demo import draw, findings, run_demo
    from scse.machine import keep_freed_memory

    keep_freed_memory()
    rows = run_demo(Path(args.out), args.steps, args.cache_dir, args.quiet)
    if rows is None:
        print("stopped and saved; the same command continues")
        return
    picture = Path(args.out) / "depth-response.png"
    draw(rows, picture)
    print_rows(rows, args.json, title="Test perplexity over loop depth, first 128 windows (trained at depths 1 to 8)")
    if not args.json:
        print("\n".join(findings(rows)))
        print(f"Picture: {picture}. Runs: {args.out}. One seed at a tiny size is an illustration, not a result.")
