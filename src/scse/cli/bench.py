"""Performance ratios against a plain eager PyTorch reference, measured in this process.

'bar' is what the project holds itself to; whether it is met depends on the machine, so each row says what was seen.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from scse.cli.common import Arguments, add_device, add_json, add_scale, print_json, require_positive
from scse.cli.tables import print_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_scale(parser, default="22m")
    parser.add_argument("--tokens", type=int, default=4096, metavar="N", help="tokens per step")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="measurements of each piece")
    parts = ("training", "generation", "evaluation", "serving", "peers", "compiling")
    parser.add_argument("--only", choices=parts, metavar="PART", help=f"one part alone: {', '.join(parts)}")
    add_device(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress")
    add_json(parser)


def run(args: Arguments) -> None:
    from scse.bench.compiling import CompilingBench
    from scse.bench.evaluation import EvaluationBench
    from scse.bench.generation import DecodingBench
    from scse.bench.peers import PeersBench
    from scse.bench.serving import ServingBench
    from scse.bench.training import StepBench
    from scse.devices import CPU, device_name, resolve_device
    from scse.errors import UserError
    from scse.progress import progress
    from scse.provenance import provenance

    require_positive(args, "tokens", "repeats")
    device = resolve_device(args.device)
    bench = StepBench(args.scale, args.tokens, args.repeats, device)
    parts: dict[str, StepBench | DecodingBench | EvaluationBench | ServingBench | PeersBench | CompilingBench] = {}
    if args.only in (None, "training"):
        parts["training"] = bench
    if args.only in (None, "generation"):
        parts["generation"] = DecodingBench(args.scale, args.repeats, device)
    if args.only in (None, "evaluation"):
        parts["evaluation"] = EvaluationBench(args.scale, args.repeats, device)
    if args.only in (None, "serving"):
        parts["serving"] = ServingBench(args.scale, args.repeats, device)
    if args.only == "peers" and device != CPU:
        raise UserError("peers are compared on the CPU alone; use --device cpu")
    if args.only == "peers":  # not among the others: it loads `transformers`
        parts["peers"] = PeersBench(args.scale, args.repeats, args.tokens)
    if args.only == "compiling":  # nor this: it calls a C++ compiler
        parts["compiling"] = CompilingBench(args.scale, args.tokens, args.repeats, device)
    rows: list[dict[str, Any]] = []
    for part, measured in parts.items():
        with progress(f"bench, {part}", measured.pieces, "pieces", not args.quiet, timed=True) as meter:
            rows += [{"part": part, **asdict(row)} for row in measured.run(meter)]
    if args.json:
        where = {"device": str(device), "device_name": device_name(device)}
        about = {"scale": args.scale, "tokens": bench.tokens, **where}
        print_json({**about, "rows": rows, "provenance": provenance()})
        return
    for row in rows:
        row["met"] = "" if row["met"] is None else "yes" if row["met"] else "no"
    print_table(rows, title=f"{args.scale} on {device}; training with {bench.tokens} tokens a step")
