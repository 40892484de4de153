"""Running the members of suites: in this process, in several, or on a cluster. The records are the same.

A crew is a function from jobs to (job, result) pairs in the order in which they finish. What another process is
working on (a second suite that shares the run, say) is left to it and looked at again when the rest is done.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from multiprocessing import connection, get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

from scse.errors import UserError
from scse.runs.folder import in_use
from scse.signals import STOPS, stops_raise
from scse.suites.member import Job, Outcome, Result, work

Finished = Generator[tuple[Job, Result], None, None]
Crew = Callable[[Sequence[Job]], Finished]
POLL_SECONDS = 1.0
log = logging.getLogger("scse")


def run_jobs(jobs: Sequence[Job], crew: Crew) -> dict[str, Result]:
    """The result of each job by its member's name; those that a stop left untouched are absent."""
    results: dict[str, Result] = {}
    waiting = list(jobs)
    with contextlib.suppress(*STOPS), stops_raise(over_others=True):
        while waiting:
            with contextlib.closing(crew(waiting)) as finished:
                for job, result in finished:
                    results[job.member.name] = result
                    _say(job, result, len(results), len(jobs))
                    if result.outcome is Outcome.STOPPED:
                        return results
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
        yield job, work(job)


def in_processes(count: int) -> Crew:
    """A process per job, `count` at a time: one that is killed takes nothing with it."""

    def crew(jobs: Sequence[Job]) -> Finished:
        waiting, threads = list(jobs), max(1, torch.get_num_threads() // count)
        running: dict[SpawnProcess, tuple[Job, connection.Connection]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < count:
                    process, told = _start(waiting[0], threads)
                    running[process] = waiting.pop(0), told
                connection.wait([process.sentinel for process in running])
                for process in [process for process in running if not process.is_alive()]:
                    job, told = running.pop(process)
                    yield job, _told(process, told)
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.join()

    return crew


def _start(job: Job, threads: int) -> tuple[SpawnProcess, connection.Connection]:
    context = get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_work_and_tell, args=(job, threads, there))
    process.start()
    there.close()
    return process, here


def _work_and_tell(job: Job, threads: int, pipe: connection.Connection) -> None:
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


class Resumable:
    """The work as submitit wants it: when Slurm's time is up, the same job is queued again and goes on."""

    def __call__(self, job: Job) -> Result:
        return work(job)

    def checkpoint(self, job: Job) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, job)


def on_cluster(folder: Path, options: Mapping[str, object]) -> Crew:
    """Jobs through submitit; `options` are its own, such as slurm_partition, and `cluster` (slurm, or local)."""
    try:
        import submitit
    except ImportError:
        raise UserError("submitit is not installed; run: pip install 'scse[cluster]'") from None
    chosen = dict(options)
    cluster = str(chosen.pop("cluster", "slurm"))
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        executor.update_parameters(name="scse", **chosen)
    except (RuntimeError, NameError, TypeError, ValueError) as error:
        raise UserError(f"submitit refuses: {error}".splitlines()[0]) from None

    def crew(jobs: Sequence[Job]) -> Finished:
        running = {executor.submit(Resumable(), job): job for job in jobs}
        try:
            while running:
                for handle in [handle for handle in running if handle.done()]:
                    yield running.pop(handle), _outcome(handle)
                time.sleep(POLL_SECONDS)
        finally:
            for handle in running:
                handle.cancel(check=False)

    return crew


def _outcome(handle: Any) -> Result:
    error = handle.exception()
    if error is not None:
        return Result(Outcome.FAILED, str(error).strip().splitlines()[-1])
    result = handle.result()
    assert isinstance(result, Result)
    return result
