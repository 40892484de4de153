"""The paper's FLOP proxies per token: the block's matrix products ('body'), and with the head ('body_head').

body = N_body(T)·(8d² + 6d·d_ff + 4Ld), body_head = body + 2d|V|; N_body counts two for subtractive families and
saturates for unshared ones.
"""

from __future__ import annotations

import argparse

from scse.cli.common import Arguments, add_family, add_json, add_scale, positive_ints, print_rows
from scse.families import DEFAULT_FAMILY


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_family(parser, default=DEFAULT_FAMILY)
    add_scale(parser)
    parser.add_argument("--depths", type=positive_ints, default=[8, 48], metavar="T,T", help="loop depths")
    parser.add_argument("--context", type=int, metavar="L", help="sequence length (default: the scale's own)")
    add_json(parser)


def run(args: Arguments) -> None:
    from dataclasses import replace

    from scse.accounting import flop_proxy
    from scse.config import SCALES, scale
    from scse.model import model_config

    rows = []
    for name in [args.scale] if args.scale else list(SCALES):
        shape = scale(name) if args.context is None else replace(scale(name), context=args.context)
        config = model_config(args.family, shape)
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
