"""Slurm as its commands show it: submit, look, cancel, queue again. No torch here."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scse.errors import UserError

# What a job gets unless it is told otherwise. A member whose time is up is queued again and goes on, so that a job need
# not be as long as a run; two minutes before, the batch script (which is the member itself) is warned.
DEFAULTS = {"time": "240", "signal": "B:USR2@120", "requeue": "true"}
# What follows from how members are sent, and is no option.
OWN = ("array", "job-name", "output", "error", "open-mode", "parsable", "wrap", "nodes", "test-only")
# Names of submitit's, which earlier versions took, and what to write instead.
FORMER = {"timeout-min": "time", "setup": "--slurm-setup FILE", "array-parallelism": "--slurm-parallel N"}


# Not a word of Slurm's, which calls such a job FAILED: it was told to end while it was still starting.
TERMINATED = "TERMINATED"
_BY_SIGTERM = (f"0:{signal.SIGTERM:d}", f"{128 + signal.SIGTERM}:0")  # an exit code as Slurm writes it, and a shell's


@dataclass(frozen=True)
class Queued:
    """A task that Slurm has not ended: its id (such as 17_3), its state (PENDING, RUNNING, …) and the reason for it."""

    id: str
    state: str
    reason: str


def sbatch_options(pairs: Mapping[str, object]) -> dict[str, str]:
    """Options of sbatch by their long names, as the user gave them, over the defaults."""
    chosen = dict(DEFAULTS)
    for given, value in pairs.items():
        written = given.replace("_", "-")
        name = written.removeprefix("slurm-")
        if name in OWN:
            raise UserError(f"--slurm-set {given}: a member is one task of an array on one node; leave '{given}' out")
        if name != written or name in FORMER:
            raise UserError(f"--slurm-set {given}: options go by sbatch's own names; write {FORMER.get(name, name)}")
        chosen[name] = str(value)
    return chosen


def sbatch_words(options: Mapping[str, str]) -> list[str]:
    """{'time': '60', 'exclusive': 'true', 'requeue': 'false'} -> ['--time=60', '--exclusive']"""
    flags = {"true": "", "false": None}
    return [
        f"--{name}{flags[value] if value in flags else '=' + value}"
        for name, value in options.items()
        if flags.get(value, "") is not None
    ]


class Slurm:
    """The cluster that this machine's Slurm commands speak to."""

    def submit(self, words: Sequence[str]) -> str:
        """Hand an array to sbatch, whole or not at all; the number of its job."""
        done = _run(["sbatch", "--parsable", *words])
        if done.returncode:
            raise UserError(f"Slurm refuses: {_reason(done.stderr)}")
        return done.stdout.strip().partition(";")[0]

    def queue(self) -> dict[tuple[str, int], Queued] | None:
        """The user's tasks by (name of the job, index); None when the controller does not answer."""
        done = _run(["squeue", "-h", "-r", "-u", str(os.getuid()), "-o", "%j|%K|%i|%T|%r"])
        if done.returncode:
            return None
        found = {}
        for line in done.stdout.splitlines():
            name, index, number, state, reason = line.strip().split("|", 4)
            if index.isdigit():
                found[name, int(index)] = Queued(number, state, "" if reason == "None" else reason)
        return found

    def known_queue(self) -> dict[tuple[str, int], Queued]:
        """The same; an error when the controller does not answer."""
        queued = self.queue()
        if queued is None:
            raise UserError("Slurm's controller does not answer (squeue failed); try again when it does")
        return queued

    def cancel(self, ids: Iterable[str]) -> None:
        wanted = list(ids)
        if wanted:
            _run(["scancel", *wanted])

    def last_state(self, job: str) -> str:
        """The state in which a task ended, such as TIMEOUT; empty when Slurm has forgotten it."""
        done = _run(["scontrol", "show", "job", "-o", job])
        stated: dict[str, str] = dict(
            re.findall(r"\b(JobState|ExitCode)=(\S+)", "" if done.returncode else done.stdout)
        )
        if stated.get("JobState") == "FAILED" and stated.get("ExitCode") in _BY_SIGTERM:
            return TERMINATED
        return stated.get("JobState", "")

    def requeue(self, job: str) -> bool:
        """Queue a task again that is still running: it is ended and waits for its next turn."""
        return _run(["scontrol", "requeue", job]).returncode == 0


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UserError(f"there is no {command[0]} here; run this where Slurm's commands are") from None


def _reason(text: str) -> str:
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ").strip() for line in text.splitlines()]
    return next(filter(None, lines), "no reason given")
