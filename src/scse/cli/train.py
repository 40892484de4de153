"""Train a model; the same command again continues it.

The run folder holds config.json, metrics.jsonl, checkpoints/ and, at the end, model/. Options of training, of the
shape and of the family are changed by name: --set lr=1e-3 --set context=256 --set step_scale=0.4.
--from RUN begins a new run with the weights and moments of another (its newest checkpoint, or RUN@STEP): its settings
are those of RUN unless changed, --steps counts its own steps, and the learning rate begins anew.
For several processes: torchrun --nproc-per-node N -m scse train ...
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from scse.cli.common import (
    DEPTH_TRAINING,
    Arguments,
    add_checkpoints,
    add_compile,
    add_data_folders,
    add_depth_training,
    add_device,
    add_family,
    add_json,
    add_scale,
    add_seed,
    print_json,
    said_once,
    settings,
)
from scse.cli.text import print_text
from scse.families import DEFAULT_FAMILY

if TYPE_CHECKING:
    from scse.config import TrainConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from scse.config import RunOptions

    add_family(parser)
    add_scale(parser)
    parser.add_argument(
        "--protocol",
        metavar="P",
        help="mini, one of the paper's such as wikitext-103-50m, or a problem; without one, lr, batch and warm-up are "
        "those of the paper's larger runs, and --steps is needed",
    )
    parser.add_argument("--data", metavar="D", help="a corpus by name or a path (default: the embedded stdlib corpus)")
    add_data_folders(parser)
    parser.add_argument(
        "--vocab",
        type=int,
        metavar="N",
        help="a BPE trained on the corpus (default: GPT-2's; at mini, 4096 entries)",
    )
    parser.add_argument("--steps", type=int, metavar="N", help="optimiser steps")
    add_seed(parser, "for initialisation, data order, depth and dropout", default=None)
    add_depth_training(parser)
    add_device(parser)
    add_compile(parser)
    parser.add_argument("--precision", metavar="P", default="auto", help="auto, float32 or bfloat16")
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="change one option by name")
    parser.add_argument("--out", required=True, metavar="RUN", help="the run folder")
    parser.add_argument("--from", dest="start", metavar="RUN[@STEP]", help="begin with the weights of another run")
    parser.add_argument(
        "--eval-every", type=int, default=RunOptions.eval_every, metavar="N", help="validate every N steps"
    )
    parser.add_argument("--eval-loops", type=int, metavar="T", help="validate at depth T (default: max_loops)")
    add_checkpoints(parser)
    parser.add_argument(
        "--keep", type=int, default=RunOptions.keep, metavar="K", help="checkpoints kept, besides the best"
    )
    parser.add_argument("--recompute", action="store_true", help="trade time for memory: recompute inside each loop")
    parser.add_argument(
        "--strategy", default=RunOptions.strategy, metavar="S", help="ddp, fsdp or hsdp, with more than one process"
    )
    parser.add_argument("--tensorboard", action="store_true", help="also write TensorBoard events")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    add_json(parser)


def run(args: Arguments) -> None:
    from scse.config import RunOptions
    from scse.machine import keep_freed_memory
    from scse.training.trainer import train

    config, start = chosen_run(args)
    chosen = {one.name: getattr(args, one.name) for one in fields(RunOptions) if hasattr(args, one.name)}
    keep_freed_memory()
    ended = train(config, args.out, RunOptions(**{**chosen, "start": start}))
    if not ended.leads:
        return
    if args.json:
        print_json({"run": args.out, "step": ended.step, "finished": ended.finished, "ppl": ended.validation_ppl})
    elif ended.finished:
        last = ended.validation
        what = "perplexity of the answers" if config.problem else "perplexity"
        scored = f", validation {what} {last.ppl:.2f} at T = {last.loops}" if last else ""
        print_text(f"{args.out}: {ended.step} steps done{scored}")
    else:
        print_text(f"{args.out}: stopped after step {ended.step} and saved; the same command continues")


def chosen_run(args: Arguments) -> tuple[TrainConfig, Path | None]:
    """The run that the options describe, and the checkpoint it begins from, if not from random weights."""
    from scse.config import assemble, protocol
    from scse.errors import UserError
    from scse.files import expand
    from scse.runs.parent import find_start

    if not args.out:
        raise UserError("--out is empty; name a folder for the run")
    chosen = protocol(args.protocol) if args.protocol else {}
    options = ("scale", "data", "steps", "seed", *DEPTH_TRAINING)
    named = {name: getattr(args, name) for name in options}
    chosen |= {name: value for name, value in named.items() if value is not None}
    if args.vocab is not None:
        chosen["tokenizer"] = f"bpe-{args.vocab}"
    by_name = settings(args.set)
    said_once(named, by_name)
    chosen |= {"precision": args.precision} | by_name
    if args.start is None:
        return assemble(args.family or DEFAULT_FAMILY, chosen), None
    start = find_start(args.start, expand(args.out))
    config = assemble(args.family or start.config.model.family, start.settings(args.family, chosen))
    return start.child(config), start.folder
