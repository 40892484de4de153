"""Look at data: `scse data list` names the corpora and problems, `scse data show` prints examples of a problem.

A problem is a corpus made by a generator, whose answers need a known number of steps: its difficulty. Its options are
changed by name: scse data show pointer-chase --difficulty 6 --set nodes=8.
"""

from __future__ import annotations

import argparse

from scse.cli.common import Arguments, add_json, print_json, print_rows, require_positive, settings
from scse.data import CORPUS_NAMES
from scse.errors import UserError, checked_choice
from scse.problems import PROBLEMS, Problem, make_problem

ACTIONS = ("list", "show")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="ACTION", help="list or show")
    parser.add_argument("name", nargs="?", metavar="PROBLEM", help="for show: a problem by name")
    parser.add_argument("--difficulty", type=int, metavar="N", help="the hardest answers (default: the trained ones)")
    parser.add_argument("--count", type=int, default=1, metavar="N", help="how many examples (default 1)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another draw (default 0)")
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="change one option by name")
    add_json(parser)


def run(args: Arguments) -> None:
    checked_choice("action", args.action, ACTIONS)
    if args.action == "list":
        print_rows(
            [*map(described, PROBLEMS.names()), *({"name": name, "kind": "text"} | _BLANK for name in CORPUS_NAMES)],
            args.json,
        )
        return
    if not args.name:
        raise UserError(f"name a problem to show: {', '.join(PROBLEMS.names())}")
    require_positive(args, "count")
    show(make_problem(args.name, settings(args.set)), args)


_BLANK = {"step": "", "trained to": "", "at most": "", "tokens": "", "options": ""}


def described(name: str) -> dict[str, object]:
    problem = make_problem(name)
    options = " ".join(f"{option}={value}" for option, value in problem.options.items())
    sizes = {"trained to": problem.hardest, "at most": problem.limit, "tokens": problem.length}
    return {"name": name, "kind": "problem", "step": problem.step, **sizes, "options": options}


def show(problem: Problem, args: Arguments) -> None:
    examples = problem.examples(args.seed, "test", 0, args.count, args.difficulty)
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
