"""The crew that works on a Slurm cluster, and what a process does that was sent to work on one member."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

from scse.errors import UserError
from scse.signals import Terminated, stops_ask, time_is_up
from scse.suites.member import Crew, Job, work
from scse.suites.outcome import Outcome, Result, stopped_too_often
from scse.suites.sending import INDEX, TASK, Sending, Sent, newest_sent, outcome, own_job, send, write_submission
from scse.suites.slurm import Queued, Slurm

SECONDS_BETWEEN_LOOKS = 15.0
LOOKS_FOR_A_RESULT = 3  # a file written on another machine may take a while to be seen here
log = logging.getLogger("scse")


class Coordinator:
    """Follows some members until each has ended for good.

    A member that was stopped (preempted, cancelled, out of time) is sent again, at once and up to a number of times,
    unless it was called off; nothing that happens to one concerns another.
    """

    def __init__(self, runs: Path, sending: Sending, slurm: Slurm) -> None:
        self.runs, self.sending, self.slurm = runs, sending, slurm
        self.sent: dict[str, Sent] = {}
        self.ours: list[str] = []  # what a stop is to cancel
        self.seen: dict[str, Queued] = {}
        self.sent_again: Counter[str] = Counter()
        self.looked: Counter[str] = Counter()
        self.answering = True

    def begin(self, members: Sequence[str]) -> tuple[int, int]:
        """Send the members that are not in the queue already; how many were, and how many are new."""
        queued, newest = self.slurm.known_queue(), newest_sent(self.runs)
        found = {name: newest[name] for name in members if name in newest and newest[name].key in queued}
        new = [name for name in members if name not in found]
        self.ours = new
        try:
            self.sent = found | (send(self.slurm, self.runs, new, self.sending) if new else {})
        except UserError:
            self.ours = []
            raise
        self.ours = list(members)
        return len(found), len(new)

    def follow(self) -> Iterator[tuple[str, Result]]:
        """The result of each member, in the order in which they end."""
        while self.sent:
            yield from self._look()
            if self.sent:
                time.sleep(SECONDS_BETWEEN_LOOKS)

    def _look(self) -> Iterator[tuple[str, Result]]:
        queued = self.slurm.queue()
        if (queued is not None) != self.answering:
            self.answering = queued is not None
            log.info("Slurm's controller %s", "answers again" if self.answering else "does not answer; waiting for it")
        if queued is None:
            return
        again = []
        for name, sent in list(self.sent.items()):
            if sent.key in queued:
                self.seen[name] = queued[sent.key]
                continue
            self.looked[name] += 1
            if sent.told() is None and self.looked[name] < LOOKS_FOR_A_RESULT:
                continue
            result = outcome(self.slurm, sent, self.seen.get(name))
            if result.outcome is Outcome.STOPPED:
                if not sent.called_off and self.sent_again[name] < self.sending.requeues:
                    again.append(name)
                    continue
                reason = "called off" if sent.called_off else result.reason
                result = stopped_too_often(self.sent_again[name], reason)
            del self.sent[name]
            yield name, result
        yield from self._send_again(again)

    def _send_again(self, names: Sequence[str]) -> Iterator[tuple[str, Result]]:
        if not names:
            return
        for name in names:
            log.info("%s was stopped; it is sent again", name)
            self.sent_again[name] += 1
            self.looked[name] = 0
        try:
            self.sent |= send(self.slurm, self.runs, names, self.sending)
        except UserError as refusal:
            for name in names:
                del self.sent[name]
                yield name, Result(Outcome.FAILED, f"stopped, and not sent again: {refusal}")

    def cancel(self) -> None:
        """End what is still in the queue; it saves first."""
        queued, newest = self.slurm.queue() or {}, newest_sent(self.runs)
        keys = [newest[name].key for name in self.ours if name in newest]
        self.slurm.cancel(queued[key].id for key in keys if key in queued)


def on_cluster(runs: Path, sending: Sending) -> Crew:
    """Each member as a task on the cluster. Jobs of an earlier coordinator that are still in the queue are adopted."""

    def crew(jobs: Sequence[Job]) -> Generator[tuple[Job, Result], None, None]:
        by_name = {job.member.name: job for job in jobs}
        coordinator = Coordinator(runs, sending, Slurm())
        try:
            adopted, new = coordinator.begin(list(by_name))
            log.info("%d members sent to Slurm, %d were there already", new, adopted)
            for name, result in coordinator.follow():
                yield by_name[name], result
        finally:
            with stops_ask():  # whoever repeats a signal is not to leave jobs behind
                coordinator.cancel()

    return crew


def work_as_sent(job: Job, sent: Sent, processes: int, command: Sequence[str]) -> Result:
    """The work of a process that was sent to one member; what became of it is told in a file.

    When the time of its job is nearly up, the member is saved and the job queued again.
    """
    if "RANK" in os.environ:  # one of the processes that `launch` started
        result = work(job)
        if os.environ["RANK"] == "0":
            sent.tell(result)
        return result
    turns = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    sent.forget()
    if turns > sent.requeues:
        result = stopped_too_often(turns - 1)  # it has not been stopped in this turn
    else:
        result = work(job) if processes == 1 else launch(sent, processes, command)
    sent.tell(result)
    if result.outcome is Outcome.STOPPED and time_is_up() and turns < sent.requeues and own_job():
        log.info("the time of this job is nearly up: saved, and queued again")
        Slurm().requeue(own_job())
    return result


def in_launched_processes(runs: Path, processes: int, command: Sequence[str]) -> Crew:
    """One member at a time, each in several processes of this machine."""

    def crew(jobs: Sequence[Job]) -> Generator[tuple[Job, Result], None, None]:
        submission = write_submission(runs, [job.member.name for job in jobs], requeues=0)
        for job, sent in zip(jobs, submission, strict=True):
            result = launch(sent, processes, command)
            yield job, result
            if result.outcome is Outcome.STOPPED:
                raise Terminated  # the signal was for this process, and so for all of them

    return crew


def launch(sent: Sent, processes: int, command: Sequence[str]) -> Result:
    """Run a member in several processes through torchrun; a signal to this one is passed on."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    told = {TASK: str(sent.folder), INDEX: str(sent.index), "OMP_NUM_THREADS": threads}
    with stops_ask() as stop:
        # In a session of its own: Ctrl-C on the terminal is for this process to pass on, once.
        child = subprocess.Popen(
            [*launcher, "-m", "scse", *command],
            stdout=subprocess.DEVNULL,
            env={**os.environ, **told},
            start_new_session=True,
        )
        passed_on = False
        while child.poll() is None:
            if stop.requested and not passed_on:
                child.terminate()
                passed_on = True
            time.sleep(0.2)
    said = sent.told()
    if said is not None:
        return said
    if passed_on:
        return Result(Outcome.STOPPED)
    return Result(Outcome.FAILED, f"its processes ended with code {child.returncode}")
