"""Continue a text. The cache keeps keys and values of every loop, so a new token costs T block applications.

--adaptive lets each token stop after the first loop that moves it by no more than a threshold; --loops is then the
most. --compare continues the same prompt at several depths, side by side, with the same random draws.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from scse.cli.common import (
    Arguments,
    add_compile,
    add_json,
    add_precision,
    add_rule,
    add_seed,
    open_chosen,
    positive_ints,
    print_json,
)
from scse.cli.text import harmless, terminal_width
from scse.config.adaptive import AdaptiveSettings
from scse.config.use import LOOPS, NEW_TOKENS, TEMPERATURE, TOP_P

if TYPE_CHECKING:
    from rich.text import Text

    from scse.cli.depth_colours import Marks
    from scse.generation import Continuation

WITHOUT_TERMINAL = 160  # columns of a comparison that goes to a file
NARROWEST = 24  # columns of text that can still be read


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--prompt", required=True, metavar="TEXT", help="what to continue; - reads standard input")
    parser.add_argument("--loops", type=int, default=LOOPS, metavar="T", help="loops per token")
    parser.add_argument(
        "--max-new-tokens", type=int, metavar="N", help=f"default {NEW_TOKENS}, or as many as the context has room"
    )
    parser.add_argument(
        "--temperature", type=float, default=TEMPERATURE, metavar="X", help="0 takes the likeliest token"
    )
    parser.add_argument(
        "--top-p", type=float, default=TOP_P, metavar="P", help="draw from the likeliest tokens that make up this share"
    )
    add_seed(parser, "seed of the random draws")
    parser.add_argument("--adaptive", type=float, metavar="X", help="threshold of early exit per token")
    add_rule(parser)
    parser.add_argument("--show-depth", action="store_true", help="mark every token with the loops it took")
    parser.add_argument("--compare", type=positive_ints, metavar="T,T", help="several depths side by side")
    parser.add_argument("--slide", action="store_true", help="go past the context with a sliding window")
    parser.add_argument("--cache", default="exact", metavar="C", help="exact, or approximate: shared, last-N")
    add_precision(parser)
    add_compile(parser)
    add_json(parser)


def run(args: Arguments) -> None:
    from scse.errors import UserError
    from scse.evaluation.rules import RULES
    from scse.generation import Depth, Generation, Sampling, continue_text
    from scse.measure import clock, elapsed

    rule = RULES.find(args.rule)
    if args.adaptive is None and args.rule != AdaptiveSettings.rule:
        raise UserError(f"--rule {args.rule} needs a threshold to stop at: --adaptive X")
    depths = tuple(dict.fromkeys(args.compare or [args.loops]))
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    depth, sampling = Depth(depths, args.adaptive, rule), Sampling(args.temperature, args.top_p)
    opened = open_chosen(args.run, args, tokens=args.max_new_tokens or 0)
    count = args.max_new_tokens
    if count is None:
        room = opened.model.config.shape.context - len(opened.tokenizer.encode(prompt)) + 1
        count = NEW_TOKENS if args.slide else max(1, min(NEW_TOKENS, room))
    wanted = Generation(depth, count, sampling, opened.tokenizer.eot_id, args.slide, args.cache)
    growing = continue_text(opened.model, opened.tokenizer, prompt, wanted, seeds=[args.seed] * len(depths))
    with opened.inference():
        if not (args.json or args.compare):
            print_as_it_comes(prompt, growing, args.loops if args.show_depth else None)
            return
        begin = clock(opened.device)
        found = deque(growing, maxlen=1).pop()
        seconds = elapsed(begin, opened.device)
    if args.compare and not args.json:
        headings = [
            f"T = {most}" if args.adaptive is None else f"at most {most} loops, {one.mean_loops:.1f} on average"
            for most, one in zip(depths, found, strict=True)
        ]
        print_side_by_side(prompt, headings, found, max(depths) if args.show_depth else None)
        return
    rows = [
        {"loops": most, "prompt": prompt, "text": one.text, "tokens": one.ids, "taken": one.loops, "seconds": seconds}
        for most, one in zip(depths, found, strict=True)
    ]
    print_json(rows)


def print_as_it_comes(prompt: str, growing: Iterator[list[Continuation]], most: int | None = None) -> None:
    """The prompt and each token as soon as it is there; with `most`, marked with its loops of so many.

    The prompt is printed with the first token, when nothing is wrong with it.
    """
    from rich.console import Console

    from scse.cli.depth_colours import Marks

    console = Console(highlight=False, soft_wrap=True)
    marks = None if most is None else Marks.on(console, most)
    safe = harmless if console.is_terminal else str  # what goes elsewhere is the model's text to the byte
    shown, last = 0, ""
    for number, (one,) in enumerate(growing):
        if number == 0:
            console.print(prompt, end="", markup=False, style="bold")
        if shown and (rest := one.pieces[shown - 1][len(last) :]):  # what waited for bytes that never came
            console.print(marked(safe(rest), one.loops[shown - 1], marks), end="")
        for piece, loops in zip(one.pieces[shown:], one.loops[shown:], strict=True):
            console.print(marked(safe(piece), loops, marks), end="")
            sys.stdout.flush()
        shown, last = len(one.pieces), one.pieces[-1] if one.pieces else ""
    console.print()
    if marks and one.loops:
        console.print(marks.legend())
        console.print(f"mean depth {one.mean_loops:.2f}, deepest {max(one.loops)} of {most} loops")


def marked(piece: str, loops: int, marks: Marks | None) -> Text:
    from rich.text import Text

    return Text(piece) if marks is None else marks.mark(piece, loops)


def print_side_by_side(
    prompt: str, headings: Sequence[str], found: list[Continuation], most: int | None = None
) -> None:
    """A column for each continuation; where they would be too narrow to read, one below the other."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from scse.cli.depth_colours import Marks

    width = terminal_width() or WITHOUT_TERMINAL
    console = Console(width=width)
    marks = None if most is None else Marks.on(console, most)
    cells = [
        Text.assemble(*(marked(harmless(p), n, marks) for p, n in zip(one.pieces, one.loops, strict=True)))
        for one in found
    ]
    across = len(headings) if width // len(headings) >= NARROWEST else 1
    console.print(Text(prompt, style="bold"))
    for begin in range(0, len(headings), across):
        table = Table(expand=True)
        for heading in headings[begin : begin + across]:
            table.add_column(heading, ratio=1, overflow="fold")
        table.add_row(*cells[begin : begin + across])
        console.print(table)
    if marks:
        console.print(marks.legend())
