"""See what every loop does to every token: one page that needs nothing else, or live with --serve.

Rows are tokens, columns are loops; a cell is the likeliest next token after that many loops, coloured by a quantity of
your choice. A threshold that can be dragged shows where each token would stop; a click opens a token. The text is cut
to the model's context. Runs on a problem show one of its examples, with the path to every answer. With --serve, type a
text in the browser: the page listens on this machine alone, at an address that cannot be guessed, until Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress

from scse.cli.common import Arguments, add_json, add_precision, open_chosen, print_json, require_positive

DEFAULT_PAGE = "lens.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from scse.lens import LOOPS

    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders, shown side by side")
    parser.add_argument("--text", metavar="T", help="the text to look at; - reads standard input")
    parser.add_argument("--file", metavar="F", help="a file with the text")
    parser.add_argument("--example", type=int, metavar="N", help="a problem's Nth test example (default 0)")
    parser.add_argument("--difficulty", type=int, metavar="D", help="of that example (default: as hard as trained on)")
    parser.add_argument("--loops", type=int, default=LOOPS, metavar="N", help="how many to show")
    parser.add_argument("--out", metavar="F.html", help=f"the page (default {DEFAULT_PAGE})")
    parser.add_argument("--serve", action="store_true", help="a live page on this machine instead")
    parser.add_argument("--port", type=int, metavar="P", help="of --serve (default: any free one)")
    add_precision(parser)
    add_json(parser)


def run(args: Arguments) -> None:
    from scse.errors import UserError
    from scse.files import expand
    from scse.lens import example, lens
    from scse.lens.examples import is_of_a_problem
    from scse.machine import keep_freed_memory

    require_positive(args, "loops")
    if args.out is not None and not args.out.endswith((".html", ".htm")):
        raise UserError(f"--out must end in .html, got '{args.out}'")
    if args.port is not None and not args.serve:
        raise UserError("--port belongs to --serve; add --serve, or leave --port out")
    if args.example is not None and (args.serve or args.text is not None or args.file is not None):
        raise UserError("--example is what is looked at; leave --text, --file and --serve out")
    if args.serve and (args.json or args.out):
        raise UserError("--serve writes no page and prints no numbers; leave --out and --json out")
    text = chosen_text(args)
    if text is not None and args.difficulty is not None:
        raise UserError("--difficulty is of an example of a problem; leave it or the text out")
    keep_freed_memory()
    if args.serve:
        serve(args, text or "")
        return
    runs = [open_chosen(expand(name), args) for name in args.runs]
    if text is None and (args.example is not None or all(map(is_of_a_problem, runs))):
        found = example(runs, args.example or 0, difficulty=args.difficulty, loops=args.loops)
    elif text is None:
        raise UserError("there is no text to look at; give some with --text or --file, or use --serve")
    else:
        found = lens(runs, text, loops=args.loops)
    if args.json and args.out is None:
        print_json(found.plain())
        return
    out = expand(args.out or DEFAULT_PAGE)
    found.save(out)
    if args.json:
        print_json(found.plain())
    print(f"lens: {out}", file=sys.stderr if args.json else sys.stdout)


def chosen_text(args: Arguments) -> str | None:
    from scse.errors import UserError
    from scse.files import expand

    if args.text is not None and args.file is not None:
        raise UserError("--text and --file both give a text; keep one of them")
    if args.text == "-":
        return sys.stdin.read()
    if args.file is None:
        given: str | None = args.text
        return given
    try:
        return expand(args.file).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {args.file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{args.file} is not UTF-8 text; convert it first") from None
    except ValueError as error:  # a name that no file can have
        raise UserError(f"cannot read {args.file}: {error}") from None


def serve(args: Arguments, text: str) -> None:
    from scse.files import expand
    from scse.lens import subject
    from scse.lens.serve import Server

    subjects = [subject(open_chosen(expand(name), args)) for name in args.runs]
    # From the moment the address is printed, Ctrl-C is the ordinary end.
    with Server(subjects, text, args.loops, args.port or 0) as server, suppress(KeyboardInterrupt):
        print(f"lens: {server.address}   (this machine only; Ctrl-C ends it)", flush=True)
        server.run()
