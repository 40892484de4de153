"""A run as a folder that transformers loads: configuration, weights, tokenizer, generation defaults, model card.

After 'import scse.hf' it loads by AutoModelForCausalLM.from_pretrained(DIR); without this package installed,
trust_remote_code=True runs the copy of our modules in the folder. The card's depth response is measured now.
"""

from __future__ import annotations

import argparse

from scse.cli.common import Arguments, add_data_folders, add_device, add_json, open_chosen, print_json
from scse.cli.text import print_text
from scse.config.use import LOOPS
from scse.files import expand


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("folder", metavar="DIR", help="a folder that does not exist yet")
    parser.add_argument(
        "--loops", type=int, default=LOOPS, metavar="T", help="loops of the exported model when none are asked for"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    add_data_folders(parser)
    add_device(parser)
    add_json(parser)


def run(args: Arguments) -> None:
    from scse.errors import UserError

    try:
        from transformers.utils.logging import disable_progress_bar

        from scse.hf.export import export
    except ModuleNotFoundError as missing:
        raise UserError(f"exporting needs the package '{missing.name}'; pip install 'scse[hf]'") from None

    disable_progress_bar()  # of transformers, for weights that are written in a moment
    opened = open_chosen(args.run, args)
    folder = expand(args.folder)
    export(opened, folder, args.loops, args.data_dir, args.cache_dir, show=not args.quiet)
    files = sorted(path.name for path in folder.iterdir())
    if args.json:
        print_json({"folder": str(folder), "files": files, "loops": args.loops})
        return
    print_text(f"{folder}: {len(files)} files, {opened.config.model.family}, {args.loops} loops by default")
    print(f"  AutoModelForCausalLM.from_pretrained({str(folder)!r})  # after: import scse.hf")
