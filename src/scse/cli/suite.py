"""The paper's tables and figures as suites: which exist, what one needs, running it, how far it is.

  list         every suite
  plan NAME    the runs, what is done, matrix products and time still needed
  run NAME     train and evaluate what is missing; the same command again continues
  status NAME  how far each row of the table is, and where each member is that was sent to a cluster or given several
               processes
  cancel NAME  end the jobs of members on a cluster; they save first

NAME is one or more suites, or 'all'. Runs that several suites share are trained once. '--preset paper' is the paper's
size; 'mini' keeps every comparison at a size for two cores.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from scse.cli.common import (
    Arguments,
    add_data_folders,
    add_json,
    positive_ints,
    print_json,
    print_rows,
    require_positive,
    seed_list,
)
from scse.cli.members import add_running, carry_out, check_running, print_plan, print_sent, say_absent, say_ended
from scse.cli.tables import print_table
from scse.cli.text import print_text
from scse.errors import UserError, checked_choice
from scse.files import expand

if TYPE_CHECKING:
    from scse.suites.needed import Member
    from scse.suites.suite import Preset, Suite


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from scse.suites.presets import MINI_WINDOWS

    parser.add_argument("action", metavar="ACTION", help="list, plan, run, status or cancel")
    parser.add_argument("names", nargs="*", metavar="NAME", help="suites, or all")
    parser.add_argument("--preset", default="mini", metavar="P", help="mini (default) or paper")
    parser.add_argument("--runs", default="runs", metavar="DIR", help="where the runs are kept (default: runs)")
    parser.add_argument("--data", metavar="D", help="train on this corpus instead (mini: stdlib unless given)")
    add_data_folders(parser)
    parser.add_argument("--only", type=_names, metavar="A,A", help="only these rows")
    parser.add_argument("--seeds", type=seed_list, metavar="N,N", help="only these seeds")
    parser.add_argument("--depths", type=positive_ints, metavar="T,T", help="only these depths")
    parser.add_argument("--steps", type=int, metavar="N", help="train every run for N steps")
    parser.add_argument(
        "--limit", type=int, metavar="N", help=f"evaluate on the first N windows (mini: {MINI_WINDOWS})"
    )
    add_running(parser)
    add_json(parser)


def run(args: Arguments) -> int:
    actions = {"list": show_list, "plan": show_plan, "run": run_suites, "status": show_status, "cancel": cancel}
    checked_choice("action", args.action, actions)
    require_positive(args, "limit", "steps")
    check_running(args)
    return actions[args.action](args) or 0


def show_list(args: Arguments) -> None:
    from scse.suites import SUITES
    from scse.suites.setting import in_the_paper

    rows = [
        {
            "suite": s.name,
            "rows": len(s.asked),
            "runs": sum(len(arm.seeds) for arm in s.asked),
            "title": f"{s.title} ({in_the_paper(s)})" if s.paper else s.title,
        }
        for s in SUITES
    ]
    print_rows(rows, args.json)


def show_plan(args: Arguments) -> None:
    print_plan(args, args.preset, chosen_members(args), expand(args.runs), absent_columns(args))


def show_status(args: Arguments) -> None:
    from scse.suites.how_far import status, where_sent

    suites, preset, runs = chosen_suites(args), chosen_preset(args), expand(args.runs)
    jobs = where_sent(chosen_members(args), runs, args.data_dir)
    rows = status(suites, preset, runs, args.seeds, args.data_dir)
    absent = absent_columns(args)
    if args.json:
        print_json({"preset": args.preset, "rows": rows, "jobs": jobs, "not_available": absent})
        return
    print_table(rows)
    print_sent(jobs)
    say_absent(absent)


def cancel(args: Arguments) -> None:
    from scse.suites.sending import call_off
    from scse.suites.slurm import Slurm

    ids = call_off(Slurm(), expand(args.runs), [member.name for member in chosen_members(args)])
    if args.json:
        print_json({"cancelled": ids})
    else:
        print_text(f"{len(ids)} jobs cancelled; what they had done is saved, and 'run' continues it")


def run_suites(args: Arguments) -> int:
    ended = carry_out(args, chosen_members(args), expand(args.runs), all_depths=args.depths is None)
    if ended is None:
        return 0
    absent = absent_columns(args)
    if args.json:
        print_json({**asdict(ended), "not_available": absent})
    else:
        say_ended(ended)
        say_absent(absent)
    return 1 if ended.failures else 0


def chosen_suites(args: Arguments) -> list[Suite]:
    from scse.suites import SUITES
    from scse.suites.needed import narrow

    if not args.names:
        raise UserError(f"name a suite: scse suite {args.action} NAME ('scse suite list' shows all)")
    names = SUITES.names() if args.names == ["all"] else dict.fromkeys(args.names)
    return narrow([SUITES.find(name) for name in names], args.only, args.depths)


def chosen_preset(args: Arguments) -> Preset:
    from scse.data import existing_corpus
    from scse.problems import PROBLEMS
    from scse.suites.presets import find_preset

    data = None if args.data is None else existing_corpus(args.data)
    if data in PROBLEMS:
        raise UserError(f"'{data}' is a problem and cannot stand for the text of a suite; name a corpus with --data")
    return find_preset(args.preset, data, args.limit, args.steps)


def chosen_members(args: Arguments) -> list[Member]:
    from scse.suites.needed import members

    suites = chosen_suites(args)
    found = members(suites, chosen_preset(args), expand(args.runs), args.seeds)
    if not found:
        seeds = sorted({seed for suite in suites for arm in suite.arms for seed in arm.seeds})
        raise UserError(f"no row has a seed of {args.seeds} (seeds: {', '.join(map(str, seeds))})")
    return found


def absent_columns(args: Arguments) -> list[str]:
    from scse.suites.needed import unavailable_columns

    return unavailable_columns(chosen_suites(args), chosen_preset(args), args.data_dir)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]
