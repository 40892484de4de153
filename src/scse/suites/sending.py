"""Members on a cluster: what was sent, what became of it, and the coordinator that follows. No torch here.

A submission is a folder RUNS/.jobs/N with the names of its members, the script that Slurm runs for each of them (the
user's own command, told by SCSE_TASK which member is meant), a log and at the end a result by member. It is written
before Slurm hears of it and names its job, so whoever looks later, from whatever machine, finds the jobs again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scse.errors import UserError
from scse.files import put, read_json, write_json
from scse.suites.outcome import Outcome, Result
from scse.suites.slurm import TERMINATED, Queued, Slurm, sbatch_words

FOLDER, MEMBERS, SCRIPT = ".jobs", "members.json", "script.sh"
TASK, INDEX = "SCSE_TASK", "SLURM_ARRAY_TASK_ID"
REQUEUES = 20
# States in which a job ends without its own fault: the member goes on from its last checkpoint.
TAKEN_AWAY = ("TIMEOUT", "NODE_FAIL", "PREEMPTED", "CANCELLED", "BOOT_FAIL", "DEADLINE", "REVOKED", TERMINATED)


@dataclass(frozen=True)
class Sending:
    """How members are sent: the user's own command, the options of sbatch, and what surrounds the command."""

    command: Sequence[str]
    options: Mapping[str, str]
    setup: Path | None = None
    parallel: int | None = None
    requeues: int = REQUEUES


@dataclass(frozen=True)
class Sent:
    """One member of one submission."""

    folder: Path
    index: int
    member: str
    requeues: int = field(default=REQUEUES, compare=False)

    @property
    def key(self) -> tuple[str, int]:
        """The name of its job, which no other folder of runs has, and its place in it."""
        runs = hashlib.sha256(str(self.folder.parent.parent.resolve()).encode()).hexdigest()[:8]
        return f"scse-{runs}-{self.folder.name}", self.index

    @property
    def on_cluster(self) -> bool:
        """Whether Slurm was to run it; otherwise several processes of one machine were, which write no log."""
        return (self.folder / SCRIPT).exists()

    @property
    def log(self) -> Path:
        return self.folder / f"log-{self.index}.txt"

    @property
    def end(self) -> Path:
        return self.folder / f"result-{self.index}.json"

    @property
    def called_off(self) -> bool:
        """Whether somebody wants it to end for good."""
        return (self.folder / f"called-off-{self.index}").exists()

    def call_off(self) -> None:
        (self.folder / f"called-off-{self.index}").touch()

    def forget(self) -> None:
        """What an earlier turn of the same job said is no longer so."""
        self.end.unlink(missing_ok=True)

    def tell(self, result: Result) -> None:
        write_json(self.end, {"outcome": result.outcome.value, "reason": result.reason, "job": own_job()})

    def told(self) -> Result | None:
        """What the member said when it ended; None for one that could not."""
        try:
            said = read_json(self.end)
            return Result(Outcome(said["outcome"]), str(said["reason"]))
        except (UserError, KeyError, ValueError):
            return None


def own_job() -> str:
    """The id of the Slurm task that this process is, or nothing."""
    array, index = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get(INDEX)
    return f"{array}_{index}" if array and index else os.environ.get("SLURM_JOB_ID", "")


def sent_here() -> Sent | None:
    """The member that this process was sent to work on, if it was."""
    folder, index = os.environ.get(TASK), os.environ.get(INDEX, "0")
    if not folder:
        return None
    return next(sent for sent in read_submission(Path(folder)) if sent.index == int(index))


def read_submission(folder: Path) -> list[Sent]:
    stated = read_json(folder / MEMBERS)
    return [Sent(folder, index, name, int(stated["requeues"])) for index, name in enumerate(stated["members"])]


def newest_sent(runs: Path) -> dict[str, Sent]:
    """Each member that was ever sent from a folder of runs, as it was sent last."""
    numbered = [path for path in (runs / FOLDER).glob("*") if path.name.isdigit()]
    found: dict[str, Sent] = {}
    for folder in sorted(numbered, key=lambda path: int(path.name)):
        with contextlib.suppress(UserError, KeyError, TypeError, ValueError):
            found |= {sent.member: sent for sent in read_submission(folder)}
    return found


def write_submission(runs: Path, members: Sequence[str], requeues: int) -> list[Sent]:
    """A folder of its own for some members that are to be sent."""
    (runs / FOLDER).mkdir(parents=True, exist_ok=True)
    number = max((int(path.name) for path in (runs / FOLDER).glob("*") if path.name.isdigit()), default=0) + 1
    while True:
        folder = (runs / FOLDER / str(number)).resolve()
        try:
            folder.mkdir()
            break
        except FileExistsError:  # another coordinator was faster
            number += 1
    write_json(folder / MEMBERS, {"members": list(members), "requeues": requeues})
    return read_submission(folder)


def send(slurm: Slurm, runs: Path, members: Sequence[str], sending: Sending) -> dict[str, Sent]:
    """Submit some members as one array: Slurm takes all of them, or refuses all."""
    submission = write_submission(runs, members, sending.requeues)
    folder = submission[0].folder
    put(folder / SCRIPT, _script(folder, sending))
    most = f"%{sending.parallel}" if sending.parallel else ""
    own = [f"--job-name={submission[0].key[0]}", f"--array=0-{len(submission) - 1}{most}", "--open-mode=append"]
    try:
        slurm.submit([*own, f"--output={folder}/log-%a.txt", *sbatch_words(sending.options), str(folder / SCRIPT)])
    except UserError:
        for name in (SCRIPT, MEMBERS):
            (folder / name).unlink()
        with contextlib.suppress(OSError):  # the folder of runs too, if all this made it
            folder.rmdir()
            folder.parent.rmdir()
            folder.parent.parent.rmdir()
        raise
    return {sent.member: sent for sent in submission}


def _script(folder: Path, sending: Sending) -> str:
    """What Slurm runs. The member replaces the shell, so that signals reach it."""
    lines = ["#!/bin/bash"]
    if sending.setup is not None:
        lines.append(f"source {shlex.quote(str(sending.setup.resolve()))} || exit 1")
    lines.append(f"export {TASK}={shlex.quote(str(folder))}")
    lines.append(f"exec {shlex.join([sys.executable, '-m', 'scse', *sending.command])}")
    return "\n".join(lines) + "\n"


def call_off(slurm: Slurm, runs: Path, names: Sequence[str]) -> list[str]:
    """End the jobs of some members, which save first; the ids of those that were in the queue."""
    queued, newest = slurm.known_queue(), newest_sent(runs)
    wanted = [newest[name] for name in names if name in newest and newest[name].key in queued]
    for sent in wanted:
        sent.call_off()  # before the job ends: a waiting 'run' would send it again
    ids = [queued[sent.key].id for sent in wanted]
    slurm.cancel(ids)
    return ids


def outcome(slurm: Slurm, sent: Sent, last: Queued | None) -> Result:
    """What became of a member that has left the queue."""
    told = sent.told()
    if told is not None:
        return told
    state = slurm.last_state(last.id) if last else ""
    if state in TAKEN_AWAY:
        return Result(Outcome.STOPPED, f"Slurm says {state}")
    said = f" (Slurm says {state})" if state else ""
    return Result(Outcome.FAILED, f"its job ended without a word{said}; its log is {sent.log}")
