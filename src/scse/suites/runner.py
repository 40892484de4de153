"""Running the members of suites: in this process, in several, or on a cluster (`cluster.py`). The records are the same.

A crew is a function from jobs to (job, result) pairs in the order in which they finish. What another process is
working on (a second suite that shares the run, say) is left to it and looked at again when the rest is done.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import connection, get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch

from scse.locks import in_use
from scse.signals import STOPS, Terminated, stops_raise
from scse.suites.cluster import in_launched_processes, on_cluster, work_as_sent
from scse.suites.member import Crew, Job, known_result, work
from scse.suites.outcome import Outcome, Result, stopped_too_often
from scse.suites.sending import Sending, sent_here

Finished = Generator[tuple[Job, Result], None, None]
POLL_SECONDS = 1.0
log = logging.getLogger("scse")


@dataclass(frozen=True)
class Hands:
    """Who works on members: a cluster if `sending` says how, else `processes` of this machine, a member each.

    `per_member` processes share a member; they are started with `command`, the user's own.
    """

    command: Sequence[str]
    processes: int
    per_member: int
    requeues: int
    sending: Sending | None

    def crew(self, runs: Path) -> Crew:
        if self.sending is not None:
            return on_cluster(runs, self.sending)
        if self.per_member > 1:
            return in_launched_processes(runs, self.per_member, self.command)
        return in_this_process if self.processes == 1 else in_processes(self.processes, self.requeues)


@dataclass(frozen=True)
class Tally:
    """How the members of an invocation ended; `failures` holds reasons by name."""

    runs: int
    done: int
    finished: bool
    failures: Mapping[str, str]


def carry_out(jobs: Sequence[Job], runs: Path, hands: Hands) -> Tally:
    """Train and evaluate what is missing; a process that was sent to one member does the work of that one."""
    sent = sent_here()
    if sent is not None:
        jobs = [job for job in jobs if job.member.name == sent.member]
        results = {job.member.name: work_as_sent(job, sent, hands.per_member, hands.command) for job in jobs}
    else:
        beside_others = hands.processes > 1 or hands.sending is not None
        results = run_jobs([replace(job, quiet=job.quiet or beside_others) for job in jobs], hands.crew(runs))
    done = sum(result.outcome is Outcome.DONE for result in results.values())
    failures = {name: result.reason for name, result in results.items() if result.outcome is Outcome.FAILED}
    return Tally(len(jobs), done, done + len(failures) == len(jobs), failures)


def run_jobs(jobs: Sequence[Job], crew: Crew) -> dict[str, Result]:
    """The result of each job by its member's name; those that a stop left untouched are absent."""
    results: dict[str, Result] = {}
    with contextlib.suppress(*STOPS), stops_raise(over_others=True):
        for job in jobs:
            if (known := known_result(job)) is not None:
                results[job.member.name] = known
                _say(job, known, len(results), len(jobs))
        waiting = [job for job in jobs if job.member.name not in results]
        while waiting:
            with contextlib.closing(crew(waiting)) as finished:
                for job, result in finished:
                    results[job.member.name] = result
                    _say(job, result, len(results), len(jobs))
            waiting = [job for job in waiting if results[job.member.name].outcome is Outcome.BUSY]
            _wait_for_any(waiting)
    return results


def _say(job: Job, result: Result, number: int, of: int) -> None:
    reason = f": {result.reason}" if result.reason else ""
    log.info("[%d/%d] %s %s%s", number, of, job.member.name, result.outcome.value, reason)


def _wait_for_any(jobs: Sequence[Job]) -> None:
    if jobs:
        log.info("waiting for %d runs that another process is working on", len(jobs))
    while jobs and all(in_use(job.member.folder) for job in jobs):
        time.sleep(POLL_SECONDS)


def in_this_process(jobs: Sequence[Job]) -> Finished:
    for job in jobs:
        result = work(job)
        yield job, result
        if result.outcome is Outcome.STOPPED:
            raise Terminated  # the signal was for this process, and so for all of them


def in_processes(count: int, requeues: int = 0) -> Crew:
    """A process per job, `count` at a time: one that is killed takes nothing with it, one that is stopped begins anew.

    Each has its share of the machine's threads and of its GPUs.
    """

    def crew(jobs: Sequence[Job]) -> Finished:
        waiting, threads = list(jobs), max(1, torch.get_num_threads() // count)
        running: dict[SpawnProcess, tuple[Job, connection.Connection, int]] = {}
        again: Counter[str] = Counter()
        try:
            while waiting or running:
                while waiting and len(running) < count:
                    slot = min(set(range(count)) - {slot for _, _, slot in running.values()})
                    process, told = _start(waiting[0], threads, share_of_devices(slot, count, visible_devices()))
                    running[process] = waiting.pop(0), told, slot
                connection.wait([process.sentinel for process in running])
                for process in [process for process in running if not process.is_alive()]:
                    job, told, _ = running.pop(process)
                    result, name = _told(process, told), job.member.name
                    if result.outcome is Outcome.STOPPED and again[name] < requeues:
                        log.info("%s was stopped; it begins again", name)
                        again[name] += 1
                        waiting.append(job)
                        continue
                    yield job, stopped_too_often(again[name]) if result.outcome is Outcome.STOPPED else result
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.join()

    return crew


def visible_devices() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    if not torch.cuda.is_available():
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")  # pragma: no cover: needs a GPU
    return named.split(",") if named else [str(index) for index in range(torch.cuda.device_count())]


def share_of_devices(slot: int, count: int, devices: Sequence[str]) -> str | None:
    """The GPUs of the worker in a slot out of `count`: a fair share, or one that several have to share.

    >>> [share_of_devices(slot, 2, ["0", "1", "2", "3"]) for slot in range(2)]
    ['0,2', '1,3']
    >>> [share_of_devices(slot, 3, ["4", "5"]) for slot in range(3)]
    ['4', '5', '4']
    """
    if not devices:
        return None
    return ",".join(devices[slot::count]) or devices[slot % len(devices)]


def _start(job: Job, threads: int, devices: str | None) -> tuple[SpawnProcess, connection.Connection]:
    context = get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_work_and_tell, args=(job, threads, devices, there))
    process.start()
    there.close()
    return process, here


def _work_and_tell(job: Job, threads: int, devices: str | None, pipe: connection.Connection) -> None:
    if devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices  # before anything here has asked for a GPU
    try:
        with stops_raise():
            torch.set_num_threads(threads)
            logging.basicConfig(format="scse: %(message)s")
            logging.getLogger("scse").setLevel(logging.WARNING)
            result = work(job)
    except STOPS:
        result = Result(Outcome.STOPPED)
    pipe.send(result)


def _told(process: SpawnProcess, pipe: connection.Connection) -> Result:
    with pipe, contextlib.suppress(EOFError):
        result = pipe.recv()
        assert isinstance(result, Result)
        return result
    return Result(Outcome.FAILED, f"its process ended with code {process.exitcode}")
