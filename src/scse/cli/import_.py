"""Weights of another project (config.json and safetensors) as a run of ours, without running their code.

The run folder works with eval, diagnose, generate and export. Its depth limit is the depth the model was made for; how
long it was trained is not known, and its configuration says one step. docs/rivals.md says which models are readable.
"""

from __future__ import annotations

import argparse

from scse.cli.common import Arguments, add_json, print_json
from scse.cli.text import print_text
from scse.families import HUGINN, OURO, PARCAE
from scse.files import expand


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="a folder with config.json, safetensors and tokenizer.json")
    parser.add_argument("out", metavar="OUT", help="a folder that does not exist yet")
    parser.add_argument("--from", dest="source", required=True, metavar="PROJECT", help=f"{HUGINN}, {PARCAE} or {OURO}")
    parser.add_argument("--weights-only", action="store_true", help="write a model folder without a tokenizer")
    add_json(parser)


def run(args: Arguments) -> None:
    from scse.interchange.read import import_run
    from scse.model import LoopedLM, trainable_parameters
    from scse.nn.without_storage import without_storage

    plan = import_run(expand(args.folder), expand(args.out), args.source, args.weights_only)
    with without_storage():
        parameters = trainable_parameters(LoopedLM(plan.config))
    if args.json:
        print_json({"out": args.out, "model": plan.config.to_dict(), "parameters": parameters, "loops": plan.loops})
        return
    print_text(f"{args.out}: {plan.config.family}, {parameters:,} parameters, made for {plan.loops} loops")
