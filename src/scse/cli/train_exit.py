"""Train an exit gate on a finished run, whose weights stay as they are: after every loop the gate says, token by token,
whether one more would be worth it. It is kept in RUN/exit and used by --rule gate wherever a rule is taken; thresholds
are calibrated as for every other rule. The same command again trains it anew. It takes about as long as evaluating the
same text at every depth: a minute or two for a small model on two cores.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from scse.cli.common import Arguments, add_data_folders, add_device, add_json, add_seed, open_chosen, print_json
from scse.cli.text import print_text
from scse.config.use import ExitTraining
from scse.files import expand


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--steps", type=int, default=ExitTraining.steps, metavar="N", help="optimiser steps")
    parser.add_argument("--batch", type=int, default=ExitTraining.batch, metavar="B", help="sequences of a step")
    parser.add_argument("--ceiling", type=int, default=ExitTraining.ceiling, metavar="T", help="loops it is trained on")
    parser.add_argument("--lr", type=float, default=ExitTraining.lr, metavar="X", help="learning rate")
    add_seed(parser, "another order of the text")
    add_device(parser)
    add_data_folders(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress")
    add_json(parser)


def run(args: Arguments) -> None:
    from scse.machine import keep_freed_memory
    from scse.progress import progress
    from scse.runs.exits import FOLDER, save_gate
    from scse.training.exits import train_gate

    wanted = ExitTraining(args.steps, args.batch, args.ceiling, args.lr, args.seed)
    keep_freed_memory()
    opened = open_chosen(args.run, args)
    corpus = opened.corpus(None, args.data_dir, args.cache_dir, progress=not args.quiet)
    with progress("training the gate", wanted.steps, "steps", enabled=not args.quiet) as meter:
        gate, score = train_gate(opened.model, corpus, opened.config, wanted, meter)
    about = {"steps": opened.step, **{f"gate_{name}": value for name, value in asdict(wanted).items()}}
    save_gate(opened.folder, gate, opened.weights, about)
    place = expand(args.run) / FOLDER
    if args.json:
        print_json({"run": args.run, "gate": str(place), **asdict(score), "motion": gate.motion.item()})
        return
    print_text(
        f"{place}: of the changes of the loss, the gate calls {score.right:.1%} right (always the same answer: "
        f"{score.always:.1%}); use it with --rule gate"
    )
