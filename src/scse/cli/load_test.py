"""Ask a server much at once and see how it holds.

Requests arrive at random moments at a mean rate, whether or not the server keeps up: prompts of all lengths, several
depths, early exit or not, streamed or not; clients that leave in the middle or read slowly, and bodies with something
wrong. Errors are those that were not the client's; with one of them the exit code is 1.

The numbers of requests and seconds are bounded, and only this machine is asked unless --any-host says otherwise.
"""

from __future__ import annotations

import argparse
import os

from scse.cli.common import Arguments, add_json, add_seed, positive_ints, print_json, require_positive
from scse.cli.tables import print_table
from scse.serve.load import THRESHOLD, Load
from scse.serve.wire import KEY_VARIABLE, Place, is_loopback

MOST_REQUESTS = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="where 'scse serve' listens, such as http://127.0.0.1:8000")
    parser.add_argument("--requests", type=int, default=100, metavar="N", help="how many")
    parser.add_argument("--rate", type=float, default=5.0, metavar="R", help="mean arrivals per second")
    parser.add_argument("--seconds", type=float, default=Load.seconds, metavar="S", help="no arrivals after this")
    parser.add_argument("--patience", type=float, default=Load.patience, metavar="S", help="how long a client waits")
    parser.add_argument("--depths", type=positive_ints, default=Load.depths, metavar="T,T", help="loops to draw from")
    parser.add_argument("--exit-threshold", type=float, default=THRESHOLD, metavar="X", help="of half the requests")
    parser.add_argument(
        "--max-tokens", type=int, default=Load.max_tokens, metavar="N", help="new tokens of a request, at most"
    )
    parser.add_argument("--well-behaved", action="store_true", help="nobody leaves, reads slowly or sends nonsense")
    add_seed(parser, "seed of what is asked and when")
    parser.add_argument("--api-key", metavar="K", help=f"the server's key (default: {KEY_VARIABLE}, else none)")
    parser.add_argument("--any-host", action="store_true", help="allow a server on another machine")
    add_json(parser)


def run(args: Arguments) -> int:
    from scse.errors import UserError
    from scse.serve.load import run_load

    require_positive(args, "requests", "max_tokens")
    if args.requests > MOST_REQUESTS:
        raise UserError(f"--requests must be at most {MOST_REQUESTS}, got {args.requests}")
    for name in ("rate", "seconds", "patience"):
        if not 0 < getattr(args, name) < float("inf"):
            raise UserError(f"--{name} must be a number above 0, got {getattr(args, name)}")
    if not 0 <= args.exit_threshold < float("inf"):
        raise UserError(f"--exit-threshold must be a number that is not negative, got {args.exit_threshold}")
    try:
        place = Place.of(args.url, args.api_key or os.environ.get(KEY_VARIABLE) or None)
    except ValueError:
        raise UserError(f"'{args.url}' is no address of a server; give one like http://127.0.0.1:8000") from None
    if not is_loopback(place.host) and not args.any_host:
        raise UserError(f"{place.host} is not this machine; test a server of your own with --any-host")
    load = Load(
        args.requests,
        args.rate,
        args.seconds,
        args.patience,
        tuple(args.depths),
        (None, args.exit_threshold),
        args.max_tokens,
        args.seed,
        **({"kinds": ("plain", "stream")} if args.well_behaved else {}),
    )
    report = run_load(place, load)
    if args.json:
        print_json(report)
    else:
        print_table(table(report), title="load test")
    return 1 if report["errors"] else 0


def table(report: dict[str, object]) -> list[dict[str, object]]:
    """A line for each number; what is grouped in the report comes apart."""
    rows: list[dict[str, object]] = []
    for name, value in report.items():
        if isinstance(value, dict) and value:
            rows += [
                {"measure": f"{name.replace('_', ' ')}: {part}", "value": number} for part, number in value.items()
            ]
        else:
            rows.append({"measure": name.replace("_", " "), "value": value or 0})
    return rows
