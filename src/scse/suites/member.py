"""What is done with one member of a suite: train it, if need be, and evaluate what has no record yet."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scse.config import RunOptions, assemble
from scse.errors import RunFailure, UserError
from scse.machine import keep_freed_memory
from scse.processes import ALONE, World, world
from scse.registry import import_guest
from scse.runs import open_run
from scse.runs.folder import RunInUse, locked, read_run_config, refuse_changes
from scse.signals import STOPS, stops_raise
from scse.suites.needed import STANDARD_DEPTHS, Member
from scse.suites.outcome import Outcome, Result
from scse.tasks import TASKS, Column, Selection
from scse.tasks.columns import loops
from scse.training.trainer import train

log = logging.getLogger("scse")


@dataclass(frozen=True)
class Job:
    """A member and where its text is. `guests` are the files to import first, in a process that has not done so.

    `all_depths` reads every standard depth on the way to the deepest asked for. `device` is where it is trained and
    evaluated. `saving` are the options of the run that say how often it is saved, and how it is spread over several
    processes.
    """

    member: Member
    data_dir: str | None = None
    cache_dir: str | None = None
    quiet: bool = False
    all_depths: bool = True
    guests: tuple[str, ...] = ()
    device: str = "auto"
    saving: Mapping[str, Any] = field(default_factory=dict)


Crew = Callable[[Sequence[Job]], Generator[tuple[Job, Result], None, None]]


def known_result(job: Job) -> Result | None:
    """The result of a member with which nothing is left to be done; None for one that needs work."""
    try:
        if not job.member.trained() or job.member.missing(job.data_dir):
            return None
        check_settings(job.member)
    except (UserError, OSError) as error:
        return Result(Outcome.FAILED, str(error))
    return Result(Outcome.DONE)


def work(job: Job) -> Result:
    """Do what is missing. What goes wrong with one member is its result and does not stop the others."""
    keep_freed_memory()
    try:
        for path in job.guests:
            import_guest(path)
        with stops_raise(over_others=True), world(job.device) as here:
            if job.member.trained():
                check_settings(job.member)
            elif not train_member(job):
                return Result(Outcome.STOPPED)
            evaluate_member(job, here)
    except STOPS:
        return Result(Outcome.STOPPED)
    except RunInUse:
        return Result(Outcome.BUSY)
    except (UserError, RunFailure, OSError) as error:
        return Result(Outcome.FAILED, str(error))
    except Exception as error:
        log.exception("%s failed unexpectedly", job.member.name)
        return Result(Outcome.FAILED, f"{type(error).__name__}: {error}")
    return Result(Outcome.DONE)


def train_member(job: Job) -> bool:
    """Train to the end from wherever the run is; False when a stop was asked for."""
    options = RunOptions(
        data_dir=job.data_dir, cache_dir=job.cache_dir, quiet=job.quiet, device=job.device, **job.saving
    )
    ended = train(assemble(job.member.arm.family, job.member.settings), job.member.folder, options)
    return ended.finished and not ended.stop_requested


def check_settings(member: Member) -> None:
    """A finished run in a member's folder must be that member."""
    begun, _ = read_run_config(member.folder)
    wanted = replace(assemble(member.arm.family, member.settings), precision=begun.precision)
    refuse_changes(member.folder, begun.to_dict(), wanted.to_dict())


def evaluate_member(job: Job, here: World) -> None:
    """Everything that is missing, one evaluation for all columns of one task on one text.

    Of several processes the leader holds the run and writes its records. What can be spread comes first, and all take
    part; the leader does the rest. An evaluation that fails does not keep the others from being made; what went wrong
    is raised after them.
    """
    member = job.member
    wrong = []
    with locked(member.folder) if here.leads else contextlib.nullcontext():
        missing = here.from_leader(member.missing(job.data_dir) if here.leads else [])
        if not missing:
            return
        run = open_run(member.folder, here.device, here=here)
        for (name, corpus, split), columns in _by_evaluation(member, missing).items():
            task = TASKS.find(name)
            if not (task.spreads or here.leads):
                continue
            selection = Selection(corpus, split, member.preset.limit, show=here.leads and not job.quiet)
            selection = replace(
                selection, data_dir=job.data_dir, cache_dir=job.cache_dir, sequences=member.arm.sequences
            )
            try:
                wanted = [*columns, *(_on_the_way(columns) if job.all_depths else ())]
                mine = run if task.spreads else replace(run, here=ALONE)
                wrong += task.evaluate(mine, selection, wanted).keep(mine).faults
            except (UserError, RunFailure) as error:
                wrong.append(f"{name} on {corpus}: {error}")
    if wrong:
        raise RunFailure("; ".join(wrong))


def _by_evaluation(member: Member, columns: Sequence[Column]) -> dict[tuple[str, str, str], list[Column]]:
    """The columns of each evaluation: its task, corpus and split. Those that can be spread come first."""
    groups: dict[tuple[str, str, str], list[Column]] = {}
    for column in sorted(columns, key=lambda column: not TASKS.find(column.task).spreads):
        corpus = member.preset.corpus(member.arm, column)
        assert corpus is not None, "a column without text is never missing"
        groups.setdefault((column.task, corpus, member.preset.split(column)), []).append(column)
    return groups


def _on_the_way(columns: Sequence[Column]) -> list[Column]:
    """The standard depths that an unroll for these columns passes: other suites want them of the same run."""
    if columns[0].task != "perplexity":
        return []
    deepest = max(column.depth or 0 for column in columns)
    return loops(*(depth for depth in STANDARD_DEPTHS if depth < deepest))
