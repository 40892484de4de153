"""The paper's tables and figures as suites: which exist, what one needs, running it, how far it is.

  list         every suite
  plan NAME    the runs, what is done, matrix products and time still needed
  run NAME     train and evaluate what is missing; the same command again continues
  status NAME  how far each row of the table is, and where each member is that was sent to a cluster
  cancel NAME  end the jobs of members on a cluster; they save first

NAME is one or more suites, or 'all'. Runs that several suites share are trained once. '--preset paper' is the paper's
size; 'mini' keeps every comparison at a size for two cores and evaluates on the first 512 windows.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scse.cli.common import (
    Arguments,
    add_data_folders,
    add_device,
    add_json,
    positive_ints,
    print_json,
    print_rows,
    require_positive,
)
from scse.cli.sending import (
    add_sending,
    cancel_jobs,
    check_sending,
    chosen_sending,
    job_rows,
    print_jobs,
    saving_options,
    send_off,
)
from scse.cli.tables import print_table
from scse.cli.text import print_text
from scse.errors import UserError, checked_choice
from scse.files import expand
from scse.locks import in_use
from scse.registry import imported_files
from scse.suites.sending import sent_here

if TYPE_CHECKING:
    from scse.suites.member import Crew
    from scse.suites.needed import Member
    from scse.suites.suite import Preset, Suite


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument("--limit", type=int, metavar="N", help="evaluate on the first N windows (mini: 512)")
    add_running(parser)
    add_json(parser)


def add_running(parser: argparse.ArgumentParser) -> None:
    """How members are run, for suites and sweeps."""
    add_device(parser)
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="run N members at a time")
    add_sending(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(args: Arguments) -> int:
    actions = {"list": show_list, "plan": show_plan, "run": run_suites, "status": show_status, "cancel": cancel}
    checked_choice("action", args.action, actions)
    require_positive(args, "limit", "steps")
    check_sending(args)
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
    from scse.suites.needed import unavailable_columns

    chosen = chosen_members(args)
    absent = unavailable_columns(chosen_suites(args), chosen_preset(args), args.data_dir)
    print_plan(args, args.preset, chosen, expand(args.runs), absent)


def print_plan(args: Arguments, preset: str, chosen: Sequence[Member], runs: Path, absent: Sequence[str]) -> None:
    """What is done and what is left to do, member by member and together."""
    from scse.report.wording import plural
    from scse.suites.cost import Estimator  # loads torch: mistakes have been told before

    estimator, rows, costs = Estimator(runs, args.device), [], []
    for member in chosen:
        missing = member.missing(args.data_dir)
        cost = estimator.cost(member, missing)
        costs.append(cost)
        row = {**describe(member, args.data_dir), "flops": cost.flops, "seconds": round(cost.seconds)}
        rows.append({**row, "speed": "measured" if cost.measured else "estimated"})
    total = {
        "runs": len(rows),
        "trained": sum(row["step"] == row["steps"] for row in rows),
        "flops": sum(cost.flops for cost in costs),
        "seconds": round(sum(cost.seconds for cost in costs)),
    }
    if args.json:
        print_json({"preset": preset, "members": rows, "total": total, "not_available": absent})
        return
    print_table([for_people(row) for row in rows], spare=("speed", "run"))
    print_text(
        f"{plural(total['runs'], 'run')}, {total['trained']} trained; {total['flops']:.1e} FLOP and about "
        f"{duration(total['seconds'])} to go in one process on this machine.\n"
        "'measured' times follow the speed of runs of the same shape here, 'estimated' ones half the rate at which "
        "this machine multiplies matrices, and less for models narrower than 256; evaluation is counted roughly."
    )
    say_absent(absent)


def show_status(args: Arguments) -> None:
    from scse.suites.needed import members, unavailable_columns
    from scse.suites.suite import narrowed

    suites, preset, rows = chosen_suites(args), chosen_preset(args), []
    jobs = job_rows(chosen_members(args), expand(args.runs))
    for suite in suites:
        for arm in suite.arms:
            runs = members([narrowed(suite, [arm], suite.columns)], preset, expand(args.runs), args.seeds)
            if runs:
                rows.append({"suite": suite.name, "row": arm.name, **totals(runs, args.data_dir)})
    absent = unavailable_columns(suites, preset, args.data_dir)
    if args.json:
        print_json({"preset": args.preset, "rows": rows, "jobs": jobs, "not_available": absent})
        return
    print_table(rows)
    print_jobs(jobs)
    say_absent(absent)


def totals(runs: Sequence[Member], data_dir: str | None) -> dict[str, Any]:
    about = [describe(member, data_dir) for member in runs]
    done, needed = (sum(row[name] for row in about) for name in ("evaluated", "evaluations"))
    return {
        "seeds": ",".join(str(member.seed) for member in runs),
        "trained": f"{sum(row['step'] == row['steps'] for row in about)} of {len(runs)}",
        "evaluated": f"{done} of {needed}",
        "state": "complete" if done == needed else _unfinished(runs, any(row["step"] for row in about)),
    }


def _unfinished(runs: Sequence[Member], begun: bool) -> str:
    if any(in_use(member.folder) for member in runs):
        return "running"
    return "in part" if begun else "missing"


def cancel(args: Arguments) -> None:
    cancel_jobs(args, chosen_members(args), expand(args.runs))


def run_suites(args: Arguments) -> int:
    from scse.suites.needed import unavailable_columns

    chosen = chosen_members(args)
    if args.detach and not sent_here():
        return send_off(args, chosen, expand(args.runs))
    ended = carry_out(args, chosen, expand(args.runs), all_depths=args.depths is None)
    absent = unavailable_columns(chosen_suites(args), chosen_preset(args), args.data_dir)
    if args.json:
        print_json({**asdict(ended), "not_available": absent})
    else:
        say_ended(ended)
        say_absent(absent)
    return 1 if ended.failures else 0


@dataclass(frozen=True)
class Ended:
    """How the members of an invocation ended; `failures` holds reasons by name."""

    runs: int
    done: int
    finished: bool
    failures: Mapping[str, str]


def carry_out(args: Arguments, chosen: Sequence[Member], runs: Path, all_depths: bool) -> Ended:
    """Train and evaluate what is missing, as the options of `add_running` say."""
    sent, saving = sent_here(), saving_options(args)
    if sent is not None:
        chosen = [member for member in chosen if member.name == sent.member]
    from scse.devices import resolve_device
    from scse.suites.cluster import work_as_sent
    from scse.suites.member import Job
    from scse.suites.outcome import Outcome
    from scse.suites.runner import run_jobs  # loads torch: mistakes have been told before

    if not args.slurm:  # a cluster's machines may have what this one has not
        resolve_device(args.device)
    alone = sent is not None or (args.processes == 1 and not args.slurm)
    how = {"data_dir": args.data_dir, "cache_dir": args.cache_dir, "all_depths": all_depths, "guests": imported_files()}
    jobs = [Job(member, quiet=args.quiet or not alone, device=args.device, saving=saving, **how) for member in chosen]
    if sent is not None:
        results = {job.member.name: work_as_sent(job, sent, args.processes_per_member, args.words) for job in jobs}
    else:
        results = run_jobs(jobs, chosen_crew(args, runs))
    done = sum(result.outcome is Outcome.DONE for result in results.values())
    failures = {name: result.reason for name, result in results.items() if result.outcome is Outcome.FAILED}
    return Ended(len(jobs), done, done + len(failures) == len(jobs), failures)


def say_ended(ended: Ended) -> None:
    print_text(f"{ended.done} of {ended.runs} runs are trained and evaluated")
    for name, reason in ended.failures.items():
        print_text(f"failed: {name}: {reason}")
    if not ended.finished:
        print_text("stopped and saved; the same command continues")


def say_absent(columns: Sequence[str]) -> None:
    if columns:
        print_text("not available at this size, or not at hand: " + ", ".join(columns))


def for_people(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the plan, with what belongs together in one column."""
    return {
        "run": row["run"],
        "row": row["row"],
        "trained": f"{row['step']:,} of {row['steps']:,}",
        "evaluated": f"{row['evaluated']} of {row['evaluations']}",
        "flops": f"{row['flops']:.1e}",
        "time": duration(row["seconds"]),
        "speed": row["speed"],
    }


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
    from scse.suites import SUITES
    from scse.suites.needed import narrow

    if not args.names:
        raise UserError(f"name a suite: scse suite {args.action} NAME ('scse suite list' shows all)")
    names = SUITES.names() if args.names == ["all"] else dict.fromkeys(args.names)
    return narrow([SUITES.find(name) for name in names], args.only, args.depths)


def chosen_preset(args: Arguments) -> Preset:
    from scse.data import existing_corpus
    from scse.suites.presets import find_preset

    data = None if args.data is None else existing_corpus(args.data)
    return find_preset(args.preset, data, args.limit, args.steps)


def chosen_members(args: Arguments) -> list[Member]:
    from scse.suites.needed import members

    suites = chosen_suites(args)
    found = members(suites, chosen_preset(args), expand(args.runs), args.seeds)
    if not found:
        seeds = sorted({seed for suite in suites for arm in suite.arms for seed in arm.seeds})
        raise UserError(f"no row has a seed of {args.seeds} (seeds: {', '.join(map(str, seeds))})")
    return found


def chosen_crew(args: Arguments, runs: Path) -> Crew:
    from scse.suites.cluster import in_launched_processes, on_cluster
    from scse.suites.runner import in_processes, in_this_process

    if args.slurm:
        return on_cluster(runs, chosen_sending(args))
    if args.processes_per_member > 1:
        return in_launched_processes(runs, args.processes_per_member, args.words)
    return in_this_process if args.processes == 1 else in_processes(args.processes, args.requeues)


def duration(seconds: float) -> str:
    """'40 s', '12 min', '3.5 h' or '9.2 d'"""
    for size, unit in ((86_400, "d"), (3600, "h")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def seed_list(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"expected whole numbers separated by commas, got '{text}'")
    return [int(part) for part in parts]
