"""The main job in miniature, in two parts. Three models learn to follow pointers, one hop a loop: accuracy by hops and
loops shows what loops are for. Then it trains three families at the mini scale on the embedded corpus (the sources of
Python's standard library), evaluates each at depths 1 to 48 and under mean loop budgets, looks at what they do at their
anchors, lets one write, and leaves a page with tables and figures. A second call uses what is already there.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from scse.cli.common import Arguments, add_device, add_json, print_json, require_positive
from scse.cli.tables import print_table
from scse.cli.text import print_sample, print_text
from scse.files import expand
from scse.suites.depth import MINI_STEPS

if TYPE_CHECKING:
    from scse.demo import Demo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="runs/demo", metavar="DIR", help="where the runs go")
    parser.add_argument("--report", default="report", metavar="DIR", help="where the page goes")
    parser.add_argument(
        "--chase-steps", type=int, default=MINI_STEPS, metavar="N", help="steps of each run on pointers"
    )
    parser.add_argument("--steps", type=int, default=150, metavar="N", help="steps of each run on text")
    parser.add_argument("--windows", type=int, default=48, metavar="N", help="windows of each evaluation")
    parser.add_argument("--cache-dir", metavar="DIR", help="where tokens are cached (default: SCSE_CACHE)")
    parser.add_argument("--processes", type=int, metavar="N", help="models at a time (default: 3 on a CPU, else 1)")
    add_device(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress")
    add_json(parser)


def run(args: Arguments) -> None:
    from scse.demo import PROMPT, Size, run_demo
    from scse.machine import keep_freed_memory

    require_positive(args, "windows", "steps", "chase_steps", "processes")
    keep_freed_memory()
    size = Size(args.chase_steps, args.steps, args.windows)
    out, report = expand(args.out), expand(args.report)
    found = run_demo(out, report, size, args.cache_dir, args.quiet, args.device, args.processes)
    if found is None:
        if args.json:
            print_json({"stopped": True})
        else:
            print("stopped and saved; the same command continues")
        return
    if args.json:
        print_json(found.to_dict())
        return
    print_chase(found)
    print_table(found.depths, title=f"Test perplexity over loop depth, first {args.windows} windows; trained at 1 to 8")
    print_table(
        [budgeted(row) for row in found.adaptive],
        title="Perplexity at mean loop budgets, thresholds calibrated on validation, and the mean depth that took",
    )
    print_table(found.anchor, title="At the anchor: bias ratio at the first and the 48th step, anchor energy")
    print_text(f"What scse makes of the prompt  {PROMPT}  at three depths:")
    for depth, text in found.texts.items():
        print(f"T = {depth}")
        print_sample(PROMPT + text)
    print_text("\n".join(found.findings))
    print_text("One seed at a tiny size is an illustration, not a result.")
    print_text(f"Page: {found.page}. Runs: {args.out}.")


def print_chase(found: Demo) -> None:
    print_text(
        "Pointer chase: every node points to another, and the answer is the root at the end of its chain. One loop can "
        "make one hop."
    )
    print_table(
        found.chase,
        title="Share of right answers by hops to the root and loops (T); solved: every answer of an example",
    )
    print_table(
        found.exits,
        title="Mean loops until a loop leaves the answer as it was, by hops, and how many are right there",
    )
    print_text("\n".join(found.chase_findings) + "\n")


def budgeted(row: dict[str, Any]) -> dict[str, Any]:
    """Each perplexity with the realised depth behind it."""
    return {name: value if name == "family" else at_depth(**value) for name, value in row.items()}


def at_depth(ppl: float | None, mean_depth: float | None) -> str | None:
    return None if ppl is None or mean_depth is None else f"{ppl:.2f} at {mean_depth:.1f}"
