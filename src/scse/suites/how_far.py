"""How far the members of suites are, as rows. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from scse.errors import UserError
from scse.layout import last_step
from scse.locks import in_use
from scse.suites.needed import Member, members
from scse.suites.outcome import Outcome
from scse.suites.sending import Sent, newest_sent
from scse.suites.slurm import Queued, Slurm
from scse.suites.suite import Preset, Suite, narrowed

CLUSTER, MACHINE = "cluster", "one machine"

Rows = list[dict[str, Any]]


def describe(member: Member, data_dir: str | None) -> dict[str, Any]:
    """How far a run is."""
    available = sum(member.available(column, data_dir) for column in member.columns)
    return {
        "run": member.name,
        "row": member.arm.name,
        "step": member.step(),
        "steps": member.steps,
        "evaluated": available - len(member.missing(data_dir)),
        "evaluations": available,
    }


def status(
    suites: Iterable[Suite], preset: Preset, runs: Path, seeds: Sequence[int] | None, data_dir: str | None
) -> Rows:
    """How far each row of each suite is; rows without any of the seeds are left out."""
    found = []
    for suite in suites:
        for arm in suite.arms:
            own = members([narrowed(suite, [arm], suite.columns)], preset, runs, seeds)
            if own:
                found.append({"suite": suite.name, "row": arm.name, **_totals(own, data_dir)})
    return found


def _totals(own: Sequence[Member], data_dir: str | None) -> dict[str, Any]:
    about = [describe(member, data_dir) for member in own]
    done, needed = (sum(row[name] for row in about) for name in ("evaluated", "evaluations"))
    return {
        "seeds": ",".join(str(member.seed) for member in own),
        "trained": f"{sum(row['step'] == row['steps'] for row in about)} of {len(own)}",
        "evaluated": f"{done} of {needed}",
        "state": "complete" if done == needed else _unfinished(own, any(row["step"] for row in about)),
    }


def _unfinished(own: Sequence[Member], begun: bool) -> str:
    if any(in_use(member.folder) for member in own):
        return "running"
    return "in part" if begun else "missing"


def where_sent(chosen: Iterable[Member], runs: Path, data_dir: str | None) -> Rows:
    """Where each member is that was ever sent from a folder of runs."""
    newest = newest_sent(runs)
    there = [(member, newest[member.name]) for member in chosen if member.name in newest]
    queued = _queue() if any(sent.on_cluster for _, sent in there) else None
    rows = []
    for member, sent in there:
        job = (queued or {}).get(sent.key)
        step = member.steps if member.trained() else max(last_step(member.folder), member.step())
        rows.append(
            {
                "run": member.name,
                "where": CLUSTER if sent.on_cluster else MACHINE,
                "job": job.id if job else "",
                "state": _state(member, sent, job, queued is not None, data_dir),
                "step": f"{step:,} of {member.steps:,}",
                "log": str(sent.log) if sent.on_cluster else "",
            }
        )
    return rows


def _queue() -> dict[tuple[str, int], Queued] | None:
    try:
        return Slurm().queue()
    except UserError:
        return None  # a machine without Slurm's commands still sees folders


def _state(member: Member, sent: Sent, job: Queued | None, answered: bool, data_dir: str | None) -> str:
    if job is not None:
        return job.state.lower() + (f" ({job.reason})" if job.reason else "")
    if not sent.on_cluster and in_use(member.folder):
        return "running"  # whatever became of the attempt that was sent
    if member.trained() and not member.missing(data_dir):
        return Outcome.DONE.value
    told = sent.told()
    if told is not None:
        return told.outcome.value + (f": {told.reason}" if told.reason else "")
    if sent.on_cluster:
        return "ended without a word" if answered else "unknown: Slurm does not answer"
    return "not running"
