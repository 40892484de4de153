"""The paper's FLOP proxies per token: the block's matrix products ('body'), and with the head ('body_head').

body = N_body(T)·(8d² + 6d·d_ff + 4Ld), body_head = body + 2d|V|; N_body counts two for subtractive families and
saturates for unshared ones. Matrices of a family's own (gates, injections) are not counted, as in the paper.
"""

from __future__ import annotations

import argparse

from scse.cli.common import Arguments, add_family, add_json, add_scale, positive_ints, print_rows, settings
from scse.families import DEFAULT_FAMILY


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_family(parser, default=DEFAULT_FAMILY)
    add_scale(parser)
    parser.add_argument("--depths", type=positive_ints, default=[8, 48], metavar="T,T", help="loop depths")
    parser.add_argument("--context", type=int, metavar="L", help="sequence length (default: the scale's own)")
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="change one option by name")
    add_json(parser)


def run(args: Arguments) -> None:
    from scse.accounting import flop_proxy
    from scse.config import SCALES, assemble

    changes = settings(args.set) | ({} if args.context is None else {"context": args.context})
    rows = []
    for name in [args.scale] if args.scale else list(SCALES):
        config = assemble(args.family, {"scale": name, "steps": 1, **changes}).model
        for depth in args.depths:
            proxy = flop_proxy(config, depth)
            rows.append(
                {
                    "family": args.family,
                    "scale": name,
                    "depth": depth,
                    "body": proxy.body,
                    "body_head": proxy.body_head,
                }
            )
    print_rows(rows, args.json)
