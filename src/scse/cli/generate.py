"""Continue a text. The cache keeps keys and values of every loop, so a new token costs T block applications.

--adaptive lets each token stop after the first loop that moves it by no more than a threshold; --loops is then the
most. --compare continues the same prompt at several depths, side by side, with the same random draws.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from scse.cli.common import Arguments, add_json, positive_ints, print_json

if TYPE_CHECKING:
    from rich.text import Text

    from scse.generation import Continuation

DEFAULT_TOKENS = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--prompt", required=True, metavar="TEXT", help="what to continue; - reads standard input")
    parser.add_argument("--loops", type=int, default=8, metavar="T", help="loops per token (default 8)")
    parser.add_argument(
        "--max-new-tokens", type=int, metavar="N", help="default 64, or as many as the context has room"
    )
    parser.add_argument("--temperature", type=float, default=0.8, metavar="X", help="default 0.8; 0: the likeliest")
    parser.add_argument("--top-p", type=float, default=0.95, metavar="P", help="default 0.95")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random draws (default 0)")
    parser.add_argument("--adaptive", type=float, metavar="X", help="threshold of early exit per token")
    parser.add_argument("--rule", default="update", metavar="R", help="exit rule: update (default), relative or kl")
    parser.add_argument("--show-depth", action="store_true", help="mark every token with the loops it took")
    parser.add_argument("--compare", type=positive_ints, metavar="T,T", help="several depths side by side")
    parser.add_argument("--slide", action="store_true", help="go past the context with a sliding window")
    parser.add_argument("--cache", default="exact", metavar="C", help="exact (default), or approximate: shared, last-N")
    add_json(parser)


def run(args: Arguments) -> None:
    from scse.errors import UserError
    from scse.evaluation.rules import exit_rule
    from scse.generation import Depth, Generation, Sampling, continue_text
    from scse.measure import elapsed
    from scse.runs import open_run

    if args.seed < 0:
        raise UserError(f"--seed must not be negative, got {args.seed}")
    depths = tuple(dict.fromkeys(args.compare or [args.loops]))
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    depth, sampling = Depth(depths, args.adaptive, exit_rule(args.rule)), Sampling(args.temperature, args.top_p)
    opened = open_run(args.run)
    count = args.max_new_tokens
    if count is None:
        room = opened.model.config.shape.context - len(opened.tokenizer.encode(prompt)) + 1
        count = DEFAULT_TOKENS if args.slide else max(1, min(DEFAULT_TOKENS, room))
    wanted = Generation(depth, count, sampling, opened.tokenizer.eot_id, args.slide, args.cache)
    growing = continue_text(opened.model, opened.tokenizer, prompt, wanted, seeds=[args.seed] * len(depths))
    if not (args.json or args.compare):
        print_as_it_comes(prompt, growing, args.loops, args.show_depth)
        return
    begin = time.perf_counter()
    found = deque(growing, maxlen=1).pop()
    seconds = elapsed(begin)
    if args.compare and not args.json:
        print_side_by_side(prompt, depths, found, args.show_depth)
        return
    rows = [
        {"loops": most, "prompt": prompt, "text": one.text, "tokens": one.ids, "taken": one.loops, "seconds": seconds}
        for most, one in zip(depths, found, strict=True)
    ]
    print_json(rows)


def print_as_it_comes(prompt: str, growing: Iterator[list[Continuation]], most: int, show_depth: bool) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(prompt, end="", markup=False, style="bold")
    shown, last = 0, ""
    for (one,) in growing:
        if shown and (rest := one.pieces[shown - 1][len(last) :]):  # what waited for bytes that never came
            console.print(marked(rest, one.loops[shown - 1], most, show_depth, console.is_terminal), end="")
        for piece, loops in zip(one.pieces[shown:], one.loops[shown:], strict=True):
            console.print(marked(piece, loops, most, show_depth, console.is_terminal), end="")
            sys.stdout.flush()
        shown, last = len(one.pieces), one.pieces[-1] if one.pieces else ""
    console.print()
    if show_depth and one.loops:
        console.print(f"mean depth {one.mean_loops:.2f}, deepest {max(one.loops)} of {most} loops", style="dim")


def marked(piece: str, loops: int, most: int, show_depth: bool, colours: bool) -> Text:
    """A token, coloured from blue (few loops) to red (many) on a terminal, with its number of loops elsewhere."""
    from rich.text import Text

    if not show_depth:
        return Text(piece)
    if not colours:
        return Text(f"{piece}[{loops}]")
    share = (loops - 1) / max(1, most - 1)
    red, blue = round(60 + 195 * share), round(255 - 195 * share)
    return Text(piece, style=f"rgb({red},110,{blue})")


def print_side_by_side(prompt: str, depths: Sequence[int], found: list[Continuation], show_depth: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table(title=Text(prompt), title_justify="left", show_lines=True)
    for most in depths:
        table.add_column(f"T = {most}", ratio=1, overflow="fold")
    cells = []
    for most, one in zip(depths, found, strict=True):
        pairs = zip(one.pieces, one.loops, strict=True)
        cells.append(Text.assemble(*(marked(p, n, most, show_depth, console.is_terminal) for p, n in pairs)))
    table.add_row(*cells)
    console.print(table)
