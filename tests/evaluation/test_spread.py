"""Several processes that evaluate one run together find what one finds, to the bit; stopped, they go on from there."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import pytest
import torch
from test_partial import PASSAGES, SETTINGS, TOKENS

import forked
from runs import run, write_corpus
from scse.config import RunOptions, assemble, protocol
from scse.data import Sequences
from scse.errors import RunFailure, UserError
from scse.evaluation.accuracy import right_answers
from scse.evaluation.budgets import AdaptiveEvaluation
from scse.evaluation.completion import complete
from scse.evaluation.perplexity import perplexity_over_depths
from scse.files import read_json
from scse.processes import World
from scse.records import read_records
from scse.runs.partial import FOLDER, Partial
from scse.signals import Terminated
from scse.training.trainer import train
from tinymodels import tiny

IDS = np.random.default_rng(0).integers(0, 61, (9, 16))
DATA = Sequences(IDS, np.roll(IDS, -1, axis=1), np.ones_like(IDS))


def adaptive(model, partial):
    rows, _ = AdaptiveEvaluation(model, SETTINGS, partial=partial).run(TOKENS, TOKENS[::-1].copy())
    return [replace(row, seconds=0.0, static_seconds=0.0) for row in rows]


def accuracy(model, partial):
    return {depth: right.tolist() for depth, right in right_answers(model, DATA, [1, 3], 2, 8, partial=partial).items()}


# How each is called, and how many batches it unrolls.
WORK = {
    "perplexity": (lambda model, partial: perplexity_over_depths(model, TOKENS, [1, 3], 2, partial=partial), 5),
    "completion": (lambda model, partial: complete(model, PASSAGES, [1, 3], 2, partial=partial), 5),
    "accuracy": (accuracy, 4),
    "adaptive": (adaptive, 15),
}


@pytest.fixture(params=WORK)
def work(request):
    return WORK[request.param]


@dataclass(frozen=True)
class Told(World):
    """One of several threads that meet as processes do; one that is stopped leaves the others without an answer."""

    said: dict
    meeting: threading.Barrier
    numbers: count

    def exchange(self, said):
        number = next(self.numbers)
        self.said[number, self.rank] = json.dumps(said)
        try:
            self.meeting.wait(60)
        except threading.BrokenBarrierError:
            raise RunFailure("another process ended") from None
        return [json.loads(self.said[number, rank]) for rank in range(self.size)]


class Group:
    """Evaluates in several threads. `left` is how often each may still unroll, `unrolled` how often all did."""

    def __init__(self, size, left=None, failure=Terminated):
        self.size, self.left, self.failure, self.unrolled = size, left or {}, failure, 0

    def model(self, rank):
        found = tiny("scse", spread=0.08)
        real = found.unroll

        def unroll(ids):
            if self.left.get(rank) == 0:
                raise self.failure()
            self.unrolled += 1
            if rank in self.left:
                self.left[rank] -= 1
            return real(ids)

        found.unroll = unroll
        return found

    def run(self, evaluate, folder):
        """What each found, or how it ended."""
        said, meeting = {}, threading.Barrier(self.size)

        def one(rank):
            here = Told(rank, self.size, torch.device("cpu"), said, meeting, count())
            try:
                return evaluate(self.model(rank), Partial(folder, {"a": 1}, here))
            except Terminated as stop:
                meeting.abort()
                return stop
            except (RunFailure, UserError) as failure:
                return failure

        with ThreadPoolExecutor(self.size) as threads:
            return list(threads.map(one, range(self.size)))


@pytest.mark.parametrize("size", [2, 3, 7])
def test_several_find_what_one_finds_and_compute_no_batch_twice(tmp_path, work, size):
    evaluate, batches = work
    together = Group(size)
    assert together.run(evaluate, tmp_path) == Group(1).run(evaluate, tmp_path) * size
    assert together.unrolled == batches
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("then", [1, 2, 3])
def test_a_share_that_was_stopped_goes_on_where_it_was(tmp_path, work, then):
    """With as many processes as before, or with another number."""
    evaluate, batches = work
    stopped = Group(2, left={1: 1})
    assert any(isinstance(end, Terminated) for end in stopped.run(evaluate, tmp_path))
    files = sorted(path.name.partition("-")[2] for path in (tmp_path / FOLDER).iterdir())
    assert files == ["1-of-2.json", "2-of-2.json"]
    again = Group(then)
    assert again.run(evaluate, tmp_path) == Group(1).run(evaluate, tmp_path) * then
    assert stopped.unrolled + again.unrolled == batches, "nothing is computed twice"
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_fails_is_heard_by_the_others(tmp_path, work):
    evaluate, _ = work
    failing = Group(2, left={1: 1}, failure=lambda: UserError("the roof leaks"))
    other, own = failing.run(evaluate, tmp_path)
    assert isinstance(own, UserError)
    assert str(own) == "the roof leaks"
    assert isinstance(other, RunFailure)
    assert str(other) == "process 1 failed: the roof leaks"


def test_different_evaluations_are_never_mixed(tmp_path):
    evaluate, _ = WORK["perplexity"]
    mixed = Group(2).run(
        lambda model, partial: evaluate(model, partial.part("a" if partial.here.leads else "b")), tmp_path
    )
    assert all("left this evaluation for another one" in str(end) for end in mixed)


# ---------------------------------------------------------------- the commands, in processes


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on text, one on a problem, passages."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("trained")
    run(write_corpus(folder / "corpus"), folder / "text")
    small = {"nodes": 6, "hops": 2, "width": 16, "ff_width": 32, "batch": 8, "steps": 2, "warmup": 1}
    wanted = {**protocol("pointer-chase"), **small, "precision": "float32"}
    train(assemble("scse", wanted), folder / "problem", RunOptions(quiet=True, eval_windows=2))
    passages = folder / "data" / "lambada"
    passages.mkdir(parents=True)
    texts = ["the state moves from its anchor and the loop rests after the state again"[: 20 + 6 * n] for n in range(9)]
    (passages / "test.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


COMMANDS = {
    "perplexity": ("text", ["eval", "--depths", "3,1", "--limit", "9"]),
    "accuracy": ("problem", ["eval", "--depths", "1,2", "--limit", "9"]),
    "through a cache": ("text", ["eval", "--depths", "2", "--limit", "4", "--cache", "exact"]),
    "offline": ("text", ["adaptive", "--budgets", "3", "--ceiling", "5", "--limit", "7", "--mode", "offline"]),
    "both modes": ("text", ["adaptive", "--budgets", "2,3", "--ceiling", "5", "--limit", "7", "--calibrate", "9"]),
    "online": ("text", ["adaptive", "--budgets", "3", "--ceiling", "5", "--limit", "4", "--mode", "online"]),
    "completion": ("text", ["lambada", "--depths", "3,1"]),
}


def line(trained, kind, out):
    which, (command, *options) = COMMANDS[kind]
    if not out.exists():
        shutil.copytree(trained / which, out)
    folders = ["--data-dir", str(trained / "data"), "--cache-dir", str(trained / "cache")]
    return [command, str(out), *options, "--batch", "2", "--quiet", "--json", *folders]


def numbers(records):
    """Everything that an evaluation says except how long it took."""
    return [
        (record.identity, {name: value for name, value in record.metrics.items() if "seconds" not in name})
        for record in read_records([records])
    ]


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_command_in_several_processes_speaks_and_records_once(trained, tmp_path, kind):
    assert forked.scse(line(trained, kind, tmp_path / "one")).returncode == 0
    alone = numbers(tmp_path / "one" / "records.jsonl")
    for size in (2, 3):
        out = tmp_path / str(size)
        result = forked.several_processes(line(trained, kind, out), size)
        assert result.returncode == 0, result.stderr
        assert len(json.loads(result.stdout)) == len(alone), "printed once"
        assert len((out / "records.jsonl").read_text().splitlines()) == len(alone), "and recorded once"
        assert numbers(out / "records.jsonl") == alone
        assert not (out / FOLDER).exists()


# `scse` that writes down what it has after every batch, and whose second process does something after two of them.
HALFWAY = """
import os, signal, sys, time
from scse.cli import main
from scse.runs import partial

partial.SECONDS_BETWEEN, keep, times = 0.0, partial.Partial.keep, []

def kept(self, batches):
    keep(self, batches)
    times.append(len(batches))
    if os.environ["RANK"] == "1" and times == [1, 2]:
        {then}

partial.Partial.keep = kept
sys.exit(main(sys.argv[1:]))
"""


def kept_by_both(folder):
    return [len(read_json(path)["batches"]) for path in sorted(folder.glob("*-of-2.json"))]


def test_a_stop_is_heard_while_one_process_works_and_another_waits(trained, tmp_path):
    forked.scse(line(trained, "perplexity", tmp_path / "one"))
    wanted = line(trained, "perplexity", tmp_path / "two")
    script = HALFWAY.format(then="time.sleep(600)")
    both = forked.begin_together(["-c", script, *wanted], python=True)
    while kept_by_both(tmp_path / "two" / FOLDER) != [3, 2]:
        time.sleep(0.05)
    time.sleep(0.2)  # by then the first waits for the second; if it does not, it is stopped elsewhere
    for process in both:
        process.send_signal(signal.SIGTERM)
    said = forked.said_by(both)
    assert [process.returncode for process in both] == [143, 143], said
    assert [err for _, err in said] == ["scse: terminated\n", ""]
    assert not (tmp_path / "two" / "records.jsonl").exists()
    assert forked.several_processes(wanted).returncode == 0
    assert numbers(tmp_path / "two" / "records.jsonl") == numbers(tmp_path / "one" / "records.jsonl")


def test_a_process_that_dies_does_not_hang_the_others(trained, tmp_path):
    script = HALFWAY.format(then="os._exit(9)")
    both = forked.begin_together(["-c", script, *line(trained, "perplexity", tmp_path / "two")], python=True)
    (_, said), _ = forked.said_by(both)
    assert [process.returncode for process in both] == [1, 9]
    assert said.startswith("scse: another process ended"), said
    assert said.count("\n") == 1
    assert not (tmp_path / "two" / "records.jsonl").exists()
