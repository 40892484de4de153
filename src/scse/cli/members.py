"""Options and answers of the commands that train and evaluate members of suites: in which processes, on which machines,
what is planned, what was sent and how it ended."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scse.cli.common import Arguments, add_checkpoints, add_device, print_json, require_positive, settings
from scse.cli.tables import print_table
from scse.cli.text import duration, print_text
from scse.errors import UserError
from scse.files import expand
from scse.registry import imported_files

if TYPE_CHECKING:
    from scse.suites.needed import Member
    from scse.suites.runner import Tally
    from scse.suites.sending import Sending


def add_running(parser: argparse.ArgumentParser) -> None:
    """How members are run, and how they are spread over processes and machines."""
    from scse.suites.sending import REQUEUES
    from scse.suites.slurm import DEFAULTS

    add_device(parser)
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="run N members at a time")
    parser.add_argument("--processes-per-member", type=int, default=1, metavar="N", help="work on each in N processes")
    parser.add_argument("--requeues", type=int, default=REQUEUES, metavar="N", help="times a stopped member goes on")
    add_checkpoints(parser)
    parser.add_argument("--slurm", action="store_true", help="run the members on a Slurm cluster")
    parser.add_argument(
        "--slurm-set",
        action="append",
        default=[],
        metavar="K=V",
        help=f"an option of sbatch: partition=gpu, exclusive=true, time=60 (default {DEFAULTS['time']} minutes)",
    )
    parser.add_argument("--slurm-setup", metavar="FILE", help="a shell script to source before each member")
    parser.add_argument("--slurm-parallel", type=int, metavar="N", help="at most N members at a time")
    parser.add_argument("--detach", action="store_true", help="only submit; do not wait for the members")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def check_running(args: Arguments) -> None:
    require_positive(args, "processes", "processes_per_member", "checkpoint_every", "slurm_parallel")
    if args.requeues < 0:
        raise UserError(f"--requeues must not be negative, got {args.requeues}")
    given = [name for name in ("slurm_set", "slurm_setup", "slurm_parallel", "detach") if getattr(args, name)]
    if given and not args.slurm:
        raise UserError(f"--{given[0].replace('_', '-')} is for a cluster; add --slurm")
    if args.processes > 1 and args.processes_per_member > 1:
        raise UserError("--processes and --processes-per-member are for one machine at a time; leave one of them out")


def print_plan(args: Arguments, preset: str, chosen: Sequence[Member], runs: Path, absent: Sequence[str]) -> None:
    """What is done and what is left to do, member by member and together."""
    from scse.report.wording import plural
    from scse.suites.cost import plan  # loads torch: mistakes have been told before

    rows, total = plan(chosen, runs, args.device, args.data_dir)
    if args.json:
        print_json({"preset": preset, "members": rows, "total": total, "not_available": absent})
        return
    print_table([_for_people(row) for row in rows], spare=("speed", "run"))
    print_text(
        f"{plural(total['runs'], 'run')}, {total['trained']} trained; {total['flops']:.1e} FLOP and about "
        f"{duration(total['seconds'])} to go in one process on this machine.\n"
        "'measured' times follow the speed of runs of the same shape here, 'estimated' ones half the rate at which "
        "this machine multiplies matrices, and less for models narrower than 256; evaluation is counted roughly."
    )
    say_absent(absent)


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
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


def carry_out(args: Arguments, chosen: Sequence[Member], runs: Path, all_depths: bool) -> Tally | None:
    """Train and evaluate what is missing, as the options of `add_running` say; None when it was only submitted."""
    from scse.suites.sending import sent_here

    saving = _saving(args)
    sending = _sending(args) if args.slurm and sent_here() is None else None
    if sending is not None and args.detach:
        _send_off(args, sending, chosen, runs)
        return None
    from scse.devices import resolve_device
    from scse.suites.member import Job
    from scse.suites.runner import Hands, carry_out  # loads torch: mistakes have been told before

    if not args.slurm:  # a cluster's machines may have what this one has not
        resolve_device(args.device)
    where = {"data_dir": args.data_dir, "cache_dir": args.cache_dir, "device": args.device}
    how = {"quiet": args.quiet, "all_depths": all_depths, "guests": imported_files(), "saving": saving}
    hands = Hands(args.words, args.processes, args.processes_per_member, args.requeues, sending)
    return carry_out([Job(member, **where, **how) for member in chosen], runs, hands)


def _saving(args: Arguments) -> dict[str, Any]:
    """How often members are saved, as `RunOptions` takes it."""
    from scse.config import RunOptions

    chosen = {"checkpoint_minutes": args.checkpoint_minutes, "checkpoint_every": args.checkpoint_every}
    RunOptions(**chosen)  # refuses what cannot be
    return chosen


def _sending(args: Arguments) -> Sending:
    from scse.suites.sending import Sending
    from scse.suites.slurm import sbatch_options

    options = sbatch_options(settings(args.slurm_set, "--slurm-set"))
    setup = None if args.slurm_setup is None else expand(args.slurm_setup)
    if setup is not None and not setup.is_file():
        raise UserError(f"there is no file {setup} to source; check --slurm-setup")
    return Sending(args.words, options, setup, args.slurm_parallel, args.requeues)


def _send_off(args: Arguments, sending: Sending, chosen: Sequence[Member], runs: Path) -> None:
    """Submit what is not done and not in the queue, and leave."""
    from scse.suites.cluster import Coordinator
    from scse.suites.slurm import Slurm

    needed = [member.name for member in chosen if not member.trained() or member.missing(args.data_dir)]
    adopted, new = Coordinator(runs, sending, Slurm()).begin(needed) if needed else (0, 0)
    done = len(chosen) - len(needed)
    if args.json:
        print_json({"runs": len(chosen), "done": done, "in_queue": adopted, "submitted": new})
    else:
        print_text(f"{new} members submitted, {adopted} were in the queue, {done} are done")


def say_ended(ended: Tally) -> None:
    print_text(f"{ended.done} of {ended.runs} runs are trained and evaluated")
    for name, reason in ended.failures.items():
        print_text(f"failed: {name}: {reason}")
    if not ended.finished:
        print_text("stopped and saved; the same command continues")


def say_absent(columns: Sequence[str]) -> None:
    if columns:
        print_text("not available at this size, or not at hand: " + ", ".join(columns))


def print_sent(rows: Sequence[dict[str, Any]]) -> None:
    """Where members are that were sent to a cluster, and those that several processes of one machine work on."""
    from scse.suites.how_far import CLUSTER, MACHINE

    for where, title in ((CLUSTER, "On the cluster"), (MACHINE, "In several processes of one machine")):
        own = [row for row in rows if row["where"] == where]
        silent = ("where",) if where == CLUSTER else ("where", "job", "log")
        if own:
            shown = [{name: value for name, value in row.items() if name not in silent} for row in own]
            print_table(shown, title=title, spare=("log",))
    folders = sorted({str(Path(row["log"]).parent) for row in rows if row["log"]})
    if folders:
        print_text(f"logs: {', '.join(folders)}")
