"""The paper's tables and figures as suites: which exist, what one needs, running it, how far it is.

  list         every suite
  plan NAME    the runs, what is done, matrix products and time still needed
  run NAME     train and evaluate what is missing; the same command again continues
  status NAME  how far each row of the table is

NAME is one or more suites, or 'all'. Runs that several suites share are trained once. '--preset paper' is the paper's
size; 'mini' keeps every comparison at a size for two cores and evaluates on the first 512 windows.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scse.cli.common import (
    Arguments,
    add_data_folders,
    add_json,
    positive_ints,
    print_json,
    print_rows,
    require_positive,
    settings,
)
from scse.errors import UserError, checked_choice

if TYPE_CHECKING:
    from scse.experiments.members import Member
    from scse.experiments.runner import Crew
    from scse.experiments.suite import Preset, Suite


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="ACTION", help="list, plan, run or status")
    parser.add_argument("names", nargs="*", metavar="NAME", help="suites, or all")
    parser.add_argument("--preset", default="mini", metavar="P", help="mini (default) or paper")
    parser.add_argument("--runs", default="runs", metavar="DIR", help="where the runs are kept (default: runs)")
    parser.add_argument("--data", metavar="D", help="train on this corpus instead (mini: stdlib unless given)")
    add_data_folders(parser)
    parser.add_argument("--only", type=_names, metavar="A,A", help="only these rows")
    parser.add_argument("--seeds", type=_seeds, metavar="N,N", help="only these seeds")
    parser.add_argument("--depths", type=positive_ints, metavar="T,T", help="only these depths")
    parser.add_argument("--steps", type=int, metavar="N", help="train every run for N steps")
    parser.add_argument("--limit", type=int, metavar="N", help="evaluate on the first N windows (mini: 512)")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="run N members at a time")
    parser.add_argument("--slurm", action="store_true", help="run the members on a Slurm cluster")
    parser.add_argument(
        "--slurm-set", action="append", default=[], metavar="K=V", help="an option of submitit, such as timeout_min=600"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    add_json(parser)


def run(args: Arguments) -> int:
    actions = {"list": show_list, "plan": show_plan, "run": run_suites, "status": show_status}
    checked_choice("action", args.action, actions)
    require_positive(args, "limit", "processes", "steps")
    return actions[args.action](args) or 0


def show_list(args: Arguments) -> None:
    from scse.experiments.setting import in_the_paper
    from scse.experiments.suites import SUITES

    rows = [
        {
            "suite": s.name,
            "rows": len(s.arms),
            "runs": sum(len(arm.seeds) for arm in s.arms),
            "title": f"{s.title} ({in_the_paper(s)})",
        }
        for s in SUITES.values()
    ]
    print_rows(rows, args.json)


def show_plan(args: Arguments) -> None:
    from scse.experiments.members import unavailable_columns

    chosen, rows, costs = chosen_members(args), [], []  # mistakes are told before torch is loaded
    from scse.experiments.cost import Estimator

    estimator = Estimator(Path(args.runs))
    for member in chosen:
        missing = member.missing(args.data_dir)
        cost = estimator.cost(member, missing)
        costs.append(cost)
        row = {**describe(member, args.data_dir), "flops": cost.flops, "seconds": round(cost.seconds)}
        rows.append({**row, "speed": "measured" if cost.measured else "estimated"})
    absent = unavailable_columns(chosen_suites(args), chosen_preset(args), args.data_dir)
    total = {
        "runs": len(rows),
        "trained": sum(row["step"] == row["steps"] for row in rows),
        "flops": sum(cost.flops for cost in costs),
        "seconds": round(sum(cost.seconds for cost in costs)),
    }
    if args.json:
        print_json({"preset": args.preset, "members": rows, "total": total, "not_available": absent})
        return
    shown = [{**row, "flops": f"{row['flops']:.1e}", "seconds": duration(row["seconds"])} for row in rows]
    print_rows(shown, False)
    print(
        f"{total['runs']} runs, {total['trained']} of them trained; {total['flops']:.1e} FLOP and about "
        f"{duration(total['seconds'])} to go in one process on this machine.\n"
        "'measured' times follow the speed of runs of the same shape here, 'estimated' ones half the rate at which "
        "this machine multiplies matrices; evaluation is counted roughly."
    )
    say_absent(absent)


def show_status(args: Arguments) -> None:
    from scse.experiments.members import members, unavailable_columns
    from scse.experiments.suite import narrowed

    suites, preset, rows = chosen_suites(args), chosen_preset(args), []
    chosen_members(args)  # refuses seeds that no row has
    for suite in suites:
        for arm in suite.arms:
            runs = members([narrowed(suite, [arm], suite.columns)], preset, Path(args.runs), args.seeds)
            if runs:
                rows.append({"suite": suite.name, "row": arm.name, **totals(runs, args.data_dir)})
    absent = unavailable_columns(suites, preset, args.data_dir)
    if args.json:
        print_json({"preset": args.preset, "rows": rows, "not_available": absent})
        return
    print_rows(rows, False)
    say_absent(absent)


def totals(runs: Sequence[Member], data_dir: str | None) -> dict[str, Any]:
    about = [describe(member, data_dir) for member in runs]
    done, needed = (sum(row[name] for row in about) for name in ("evaluated", "evaluations"))
    return {
        "seeds": ",".join(str(member.seed) for member in runs),
        "trained": f"{sum(row['step'] == row['steps'] for row in about)} of {len(runs)}",
        "evaluated": f"{done} of {needed}",
        "state": "complete" if done == needed else "in part" if any(row["step"] for row in about) else "missing",
    }


def run_suites(args: Arguments) -> int:
    from scse.experiments.members import unavailable_columns

    chosen = chosen_members(args)  # mistakes are told before torch is loaded
    from scse.experiments.runner import run_jobs
    from scse.experiments.work import Job, Outcome

    crew = chosen_crew(args)
    alone = args.processes == 1 and not args.slurm
    how = {"data_dir": args.data_dir, "cache_dir": args.cache_dir, "all_depths": args.depths is None}
    jobs = [Job(member, quiet=args.quiet or not alone, **how) for member in chosen]
    results = run_jobs(jobs, crew)
    counts = {outcome.name.lower(): 0 for outcome in Outcome}
    for result in results.values():
        counts[result.outcome.name.lower()] += 1
    failures = {name: result.reason for name, result in results.items() if result.outcome is Outcome.FAILED}
    finished = counts["done"] + counts["failed"] == len(jobs)
    absent = unavailable_columns(chosen_suites(args), chosen_preset(args), args.data_dir)
    if args.json:
        summary = {"runs": len(jobs), "done": counts["done"], "finished": finished}
        print_json({**summary, "failures": failures, "not_available": absent})
        return 1 if failures else 0
    print(f"{counts['done']} of {len(jobs)} runs are trained and evaluated")
    say_absent(absent)
    for name, reason in failures.items():
        print(f"failed: {name}: {reason}")
    if not finished:
        print("stopped and saved; the same command continues")
    return 1 if failures else 0


def say_absent(columns: Sequence[str]) -> None:
    if columns:
        print("not available at this size, or not at hand: " + ", ".join(columns))


def describe(member: Member, data_dir: str | None) -> dict[str, Any]:
    """How far a run is, as a row."""
    available = sum(member.available(column, data_dir) for column in member.columns)
    return {
        "run": member.name,
        "row": member.arm.name,
        "step": member.step(),
        "steps": member.steps,
        "evaluated": available - len(member.missing(data_dir)),
        "evaluations": available,
    }


def chosen_suites(args: Arguments) -> list[Suite]:
    from scse.experiments.members import narrow
    from scse.experiments.suites import SUITES, find_suite

    if not args.names:
        raise UserError(f"name a suite: scse suite {args.action} NAME ('scse suite list' shows all)")
    names = SUITES if args.names == ["all"] else dict.fromkeys(args.names)
    return narrow([find_suite(name) for name in names], args.only, args.depths)


def chosen_preset(args: Arguments) -> Preset:
    from scse.data import existing_corpus
    from scse.experiments.presets import find_preset

    data = None if args.data is None else existing_corpus(args.data)
    return find_preset(args.preset, data, args.limit, args.steps)


def chosen_members(args: Arguments) -> list[Member]:
    from scse.experiments.members import members

    suites = chosen_suites(args)
    found = members(suites, chosen_preset(args), Path(args.runs), args.seeds)
    if not found:
        seeds = sorted({seed for suite in suites for arm in suite.arms for seed in arm.seeds})
        raise UserError(f"no row has a seed of {args.seeds} (seeds: {', '.join(map(str, seeds))})")
    return found


def chosen_crew(args: Arguments) -> Crew:
    from scse.experiments.runner import in_processes, in_this_process, on_cluster

    if args.slurm:
        options = {k: int(str(v)) if str(v).isdigit() else v for k, v in settings(args.slurm_set).items()}
        return on_cluster(Path(args.runs) / ".submitit", options)
    return in_this_process if args.processes == 1 else in_processes(args.processes)


def duration(seconds: float) -> str:
    """'40 s', '12 min', '3.5 h' or '9.2 d'"""
    for size, unit in ((86_400, "d"), (3600, "h")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _seeds(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"expected whole numbers separated by commas, got '{text}'")
    return [int(part) for part in parts]
