"""Look at data: `scse data list` names the corpora and problems, `scse data show` prints examples of a problem.

'scse data prepare CORPUS' tokenises a corpus before anything is trained on it, in several processes; killed, it goes on
where it was. 'scse data verify' hashes every file of the token cache, which commands trust by size and time.

A problem is a corpus made by a generator, whose answers need a known number of steps: its difficulty. Its options are
changed by name: scse data show pointer-chase --difficulty 6 --set nodes=8.
"""

from __future__ import annotations

import argparse
import os

from scse.cli.common import (
    Arguments,
    add_data_folders,
    add_json,
    add_seed,
    print_json,
    print_rows,
    require_positive,
    settings,
)
from scse.cli.tables import print_table
from scse.cli.text import print_text
from scse.data import CORPORA, at_hand
from scse.errors import UserError, checked_choice
from scse.problems import PROBLEMS, Problem, make_problem

LEGEND = (
    "'here' is 'no' for what is not in the data folder and would be looked for on the hub. 'trained to' is how many "
    "steps away the hardest answers of training are, 'at most' what a sequence of so many 'tokens' has room for."
)
ACTIONS = ("list", "show", "prepare", "verify")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="ACTION", help="list, show, prepare or verify")
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="for show: a problem by name; for prepare: a corpus by name or path"
    )
    parser.add_argument("--difficulty", type=int, metavar="N", help="show: with a hardest answer of just this")
    parser.add_argument("--count", type=int, default=1, metavar="N", help="how many examples (default 1)")
    add_seed(parser, "another draw")
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="change one option by name")
    parser.add_argument("--vocab", type=int, metavar="N", help="prepare: with a BPE trained on it (default: GPT-2's)")
    parser.add_argument("--splits", metavar="S,S", help="prepare: only these splits (default: all)")
    parser.add_argument("--processes", type=int, metavar="N", help="prepare: with N processes (default: one per core)")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    add_data_folders(parser)
    add_json(parser)


def run(args: Arguments) -> int:
    checked_choice("action", args.action, ACTIONS)
    if args.action == "prepare":
        return prepare(args)
    if args.action == "verify":
        return verify(args)
    look(args)
    return 0


def look(args: Arguments) -> None:
    if args.action == "list":
        print_rows(
            [*map(described, PROBLEMS.names()), *(described_text(name, args.data_dir) for name in CORPORA.names())],
            args.json,
        )
        if not args.json:
            print_text(LEGEND)
        return
    if not args.name:
        raise UserError(f"name a problem to show: {', '.join(PROBLEMS.names())}")
    require_positive(args, "count")
    if args.name in CORPORA:
        raise UserError(f"'{args.name}' is text; only examples of problems can be shown: {', '.join(PROBLEMS.names())}")
    show(make_problem(args.name, settings(args.set)), args)


def prepare(args: Arguments) -> int:
    """Tokenise what training will ask for."""
    from scse.data import DataConfig, existing_corpus, open_corpus

    if not args.name:
        raise UserError("name a corpus to prepare: scse data prepare NAME ('scse data list' shows all)")
    require_positive(args, "processes", "vocab")
    if args.name in PROBLEMS:
        raise UserError(f"'{args.name}' is a problem, which is drawn and not tokenised; there is nothing to prepare")
    tokenizer = "gpt2" if args.vocab is None else f"bpe-{args.vocab}"
    config = DataConfig(existing_corpus(args.name), tokenizer, args.data_dir, args.cache_dir)
    corpus = open_corpus(config, not args.quiet, processes=args.processes or os.cpu_count() or 1)
    rows = []
    for name in args.splits.split(",") if args.splits else corpus.splits:
        split = corpus.split(name)
        rows.append({"split": split.name, "tokens": len(split.tokens), "sha256": split.digest})
    print_rows(rows, args.json, title="" if args.json else f"{corpus.name} as {corpus.tokenizer.name}")
    return 0


def verify(args: Arguments) -> int:
    """Hash all of the cache; 1 if something is not as it was built."""
    from scse.data.cache import cache_root, check

    root = cache_root(args.cache_dir)
    rows = [{"file": str(path.relative_to(root)), "state": wrong or "ok"} for path, wrong in check(root)]
    damaged = [row for row in rows if row["state"] != "ok"]
    if args.json:
        print_json({"cache": str(root), "files": rows})
    else:
        print_text(f"{root}: {len(rows)} files, {len(damaged)} not as they were built")
        if damaged:
            print_table(damaged)
            print_text("delete them; whoever needs them builds them again")
    return 1 if damaged else 0


_BLANK = {"step": "", "trained to": "", "at most": "", "tokens": "", "options": ""}


def described(name: str) -> dict[str, object]:
    problem = make_problem(name)
    options = " ".join(f"{option}={value}" for option, value in problem.options.items())
    sizes = {"trained to": problem.hardest, "at most": problem.limit, "tokens": problem.length}
    return {"name": name, "kind": "problem", "here": "made", "step": problem.step, **sizes, "options": options}


def described_text(name: str, data_dir: str | None) -> dict[str, object]:
    return {"name": name, "kind": "text", "here": "yes" if at_hand(name, data_dir) else "no", **_BLANK}


def show(problem: Problem, args: Arguments) -> None:
    if args.difficulty is None:
        examples = problem.examples(args.seed, "test", 0, args.count)
    else:
        examples = problem.as_hard_as(args.difficulty, args.seed, "test", args.count)
    problem.verify(examples)
    if args.json:
        answers = problem.answers(examples)
        print_json(
            [
                {
                    "tokens": problem.text(examples.ids[row]),
                    "asked": problem.asked.tolist(),
                    "answers": problem.text(answers[row]),
                    "difficulty": examples.difficulty[row].tolist(),
                }
                for row in range(len(examples))
            ]
        )
        return
    for row in range(len(examples)):
        print(("\n" if row else "") + problem.render(examples, row))
