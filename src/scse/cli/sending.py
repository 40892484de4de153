"""Options and answers of commands that send their members to Slurm."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scse.cli.common import Arguments, add_checkpoint_minutes, print_json, require_positive, settings
from scse.cli.tables import print_table
from scse.cli.text import print_text
from scse.errors import UserError

if TYPE_CHECKING:
    from scse.suites.needed import Member
    from scse.suites.sending import Sending


def add_sending(parser: argparse.ArgumentParser) -> None:
    """How members are spread over processes and machines."""
    from scse.suites.sending import REQUEUES
    from scse.suites.slurm import DEFAULTS

    parser.add_argument("--processes-per-member", type=int, default=1, metavar="N", help="work on each in N processes")
    parser.add_argument("--requeues", type=int, default=REQUEUES, metavar="N", help="times a stopped member goes on")
    parser.add_argument("--checkpoint-every", type=int, metavar="N", help="save every N steps (default 200)")
    add_checkpoint_minutes(parser)
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


def check_sending(args: Arguments) -> None:
    require_positive(args, "processes", "processes_per_member", "checkpoint_every", "slurm_parallel")
    if args.requeues < 0:
        raise UserError(f"--requeues must not be negative, got {args.requeues}")
    given = [name for name in ("slurm_set", "slurm_setup", "slurm_parallel", "detach") if getattr(args, name)]
    if given and not args.slurm:
        raise UserError(f"--{given[0].replace('_', '-')} is for a cluster; add --slurm")
    if args.processes > 1 and args.processes_per_member > 1:
        raise UserError("--processes and --processes-per-member are for one machine at a time; leave one of them out")


def saving_options(args: Arguments) -> dict[str, Any]:
    """How often members are saved, as `RunOptions` takes it."""
    from scse.config import RunOptions

    chosen: dict[str, Any] = {"checkpoint_minutes": args.checkpoint_minutes}
    if args.checkpoint_every is not None:
        chosen["checkpoint_every"] = args.checkpoint_every
    RunOptions(**chosen)  # refuses what cannot be
    return chosen


def chosen_sending(args: Arguments) -> Sending:
    from scse.files import expand
    from scse.suites.sending import Sending
    from scse.suites.slurm import sbatch_options

    options = sbatch_options(settings(args.slurm_set, "--slurm-set"))
    setup = None if args.slurm_setup is None else expand(args.slurm_setup)
    if setup is not None and not setup.is_file():
        raise UserError(f"there is no file {setup} to source; check --slurm-setup")
    return Sending(args.words, options, setup, args.slurm_parallel, args.requeues)


def send_off(args: Arguments, chosen: Sequence[Member], runs: Path) -> int:
    """Submit what is not done and not in the queue, and leave."""
    from scse.suites.cluster import Coordinator
    from scse.suites.slurm import Slurm

    needed = [member.name for member in chosen if not member.trained() or member.missing(args.data_dir)]
    adopted, new = Coordinator(runs, chosen_sending(args), Slurm()).begin(needed) if needed else (0, 0)
    done = len(chosen) - len(needed)
    if args.json:
        print_json({"runs": len(chosen), "done": done, "in_queue": adopted, "submitted": new})
    else:
        print_text(f"{new} members submitted, {adopted} were in the queue, {done} are done")
    return 0


def job_rows(chosen: Sequence[Member], runs: Path) -> list[dict[str, Any]]:
    """Where each member is that was ever sent from a folder of runs."""
    from scse.suites.sending import last_step, newest_sent
    from scse.suites.slurm import Slurm

    newest = newest_sent(runs)
    if not newest:
        return []
    try:
        queued = Slurm().queue()
    except UserError:
        queued = None  # a machine without Slurm's commands still sees folders
    rows = []
    for member in chosen:
        sent = newest.get(member.name)
        if sent is None:
            continue
        there, told = (queued or {}).get(sent.key), sent.told()
        if there is not None:
            state = there.state.lower() + (f" ({there.reason})" if there.reason else "")
        elif told is not None:
            state = told.outcome.value + (f": {told.reason}" if told.reason else "")
        else:
            state = "unknown: Slurm does not answer" if queued is None else "ended without a word"
        step = member.steps if member.trained() else max(last_step(member.folder), member.step())
        row = {"run": member.name, "job": there.id if there else "", "state": state}
        rows.append({**row, "step": f"{step:,} of {member.steps:,}", "log": str(sent.log)})
    return rows


def print_jobs(rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        print_table(rows, title="On the cluster", spare=("log",))
        folders = sorted({str(Path(row["log"]).parent) for row in rows})
        print_text(f"logs: {', '.join(folders)}")


def cancel_jobs(args: Arguments, chosen: Sequence[Member], runs: Path) -> None:
    """End the chosen members' jobs. They save first."""
    from scse.suites.sending import newest_sent
    from scse.suites.slurm import Slurm

    slurm, sent = Slurm(), newest_sent(runs)
    queued = slurm.queue()
    if queued is None:
        raise UserError("Slurm's controller does not answer (squeue failed); try again when it does")
    wanted = [sent[member.name] for member in chosen if member.name in sent and sent[member.name].key in queued]
    for one in wanted:
        one.call_off()  # before the job ends: a waiting 'run' would send it again
    ids = [queued[one.key].id for one in wanted]
    slurm.cancel(ids)
    if args.json:
        print_json({"cancelled": ids})
    else:
        print_text(f"{len(ids)} jobs cancelled; what they had done is saved, and 'run' continues it")
