"""Two processes train what one process trains, and each can continue the other's run."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch

from forked import two_processes
from runs import command, final_tensors, run
from scse import cli
from scse.errors import UserError
from scse.files import read_json
from scse.processes import World
from scse.runs.folder import locked
from scse.training import distributed, trainer
from scse.training.objectives import Objective
from tinymodels import some_ids, tiny

# N processes with one micro-batch each draw the dropout masks of one process with N micro-batches.
PARTS = {"micro_batches": 2}


def under_torchrun(arguments):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "scse"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([*launcher, *arguments], capture_output=True, text=True, check=False, env=environment)


def torchrun(corpus, out, strategy, family, launched=two_processes):
    result = launched(command(corpus, out, "--quiet", "--strategy", strategy, "--family", family, **PARTS))
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.count("9 steps done") == 1, "one process speaks for all"


def forget_after(out, step):
    """Put a finished run back to an earlier checkpoint."""
    for path in (out / "checkpoints").iterdir():
        if int(path.name[5:]) > step:
            shutil.rmtree(path)
    shutil.rmtree(out / "model")


def assert_close_run(left, right):
    for ours, theirs in zip(final_tensors(left), final_tensors(right), strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours:
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", ["scalar-gate", "scse-random"])
def test_shards_of_every_kind_of_parameter(corpus, tmp_path, family):
    """Single numbers and frozen matrices shard too."""
    run(corpus, tmp_path / "one", family, **PARTS)
    torchrun(corpus, tmp_path / "two", "fsdp", family, under_torchrun if family == "scalar-gate" else two_processes)
    assert_close_run(tmp_path / "one", tmp_path / "two")


def test_two_processes_begin_from_another_run_as_one_does(corpus, tmp_path):
    run(corpus, tmp_path / "parent", **PARTS)
    line = ["train", "--from", str(tmp_path / "parent"), "--steps", "3", "--precision", "float32", "--quiet"]
    line += ["--cache-dir", str(corpus.parent / "cache"), "--out"]
    assert cli.main([*line, str(tmp_path / "one")]) == 0
    result = two_processes([*line, str(tmp_path / "two"), "--strategy", "fsdp"])
    assert result.returncode == 0, result.stderr[-3000:]
    assert_close_run(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_depths_of_their_own_and_gradients_through_the_last_loops(corpus, tmp_path, strategy):
    """Sequences of every process have the depths they have in one process, and some weights get no gradient at all."""
    wanted = {"depths": "poisson:3/sequence", "backprop": 1, "objective": "last+0.1*fixed-point", **PARTS}
    run(corpus, tmp_path / "one", **wanted)
    line = command(corpus, tmp_path / "two", "--quiet", "--strategy", strategy, "--family", "scse", **wanted)
    result = two_processes(line)
    assert result.returncode == 0, result.stderr[-3000:]
    assert_close_run(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize(("strategy", "family"), [("ddp", "scse"), ("fsdp", "tuned-adapter")])
def test_two_processes_equal_one_and_continue_each_other(corpus, tmp_path, strategy, family):
    run(corpus, tmp_path / "one", family, **PARTS)
    torchrun(corpus, tmp_path / "two", strategy, family)
    assert_close_run(tmp_path / "one", tmp_path / "two")

    shutil.copytree(tmp_path / "one", tmp_path / "one-then-two")
    forget_after(tmp_path / "one-then-two", 6)
    torchrun(corpus, tmp_path / "one-then-two", strategy, family)
    assert_close_run(tmp_path / "one", tmp_path / "one-then-two")

    forget_after(tmp_path / "two", 6)
    run(corpus, tmp_path / "two", family, **PARTS)
    assert_close_run(tmp_path / "one", tmp_path / "two")


def test_a_batch_that_cannot_be_split(corpus, tmp_path, monkeypatch):
    class Three(World):
        def from_leader(self, value):
            return value

    three = Three(0, 3, torch.device("cpu"))
    monkeypatch.setattr(trainer, "world", lambda device: contextlib.nullcontext(three))
    with pytest.raises(UserError, match="a batch of 4 sequences cannot be split evenly over 3 processes"):
        run(corpus, tmp_path / "out")


def test_what_two_processes_began_one_continues_with_the_same_dropout(corpus, tmp_path):
    """With one micro-batch each, two processes are one with two; the run remembers that."""
    run(corpus, tmp_path / "one", **PARTS)
    result = two_processes(command(corpus, tmp_path / "two", "--quiet"))
    assert result.returncode == 0, result.stderr[-3000:]
    assert read_json(tmp_path / "two" / "config.json")["parts"] == 2
    assert "parts" not in read_json(tmp_path / "one" / "config.json")
    forget_after(tmp_path / "two", 6)
    run(corpus, tmp_path / "two")
    assert_close_run(tmp_path / "one", tmp_path / "two")


def test_processes_that_cannot_share_the_parts_are_told(corpus, tmp_path, monkeypatch, caplog):
    class Two(World):
        def from_leader(self, value):
            return value

    run(corpus, tmp_path / "out", steps=3)
    monkeypatch.setattr(trainer, "world", lambda device: contextlib.nullcontext(Two(0, 2, torch.device("cpu"))))
    monkeypatch.setattr(trainer, "distribute", lambda *_: pytest.fail("far enough"))
    with pytest.raises(pytest.fail.Exception):
        run(corpus, tmp_path / "out", steps=3)
    assert "2 processes cannot share the 1 parts of a batch" in caplog.text


def test_tasks_of_srun_without_torchrun_are_told(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(UserError, match=r"one of 2 tasks of srun.*torchrun"):
        run(corpus, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("extra", "message"), [([], "is in use by another trainer"), (["--family", "scze"], "did you mean 'scse'?")]
)
def test_a_mistake_is_one_line_of_the_leader(corpus, tmp_path, extra, message):
    """Whether the leader alone finds it, the other process waiting for its word, or both."""
    launched = under_torchrun if extra else two_processes
    with locked(tmp_path / "out"):
        result = launched(command(corpus, tmp_path / "out", "--quiet", *extra))
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("scse: "))
    assert message in line
    assert "[rank" not in result.stderr, "a traceback of a process"
    if launched is two_processes:
        assert result.returncode == 2
    else:
        root_cause = result.stderr.partition("Root Cause")[2]
        assert re.search(r"rank +: 0 .*\n +exitcode +: 2 ", root_cause)


def test_a_process_that_fails_alone_speaks_for_itself(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(cli, "SECONDS_TO_SPEAK", 0.0)
    assert cli.main(["trian"]) == 2
    assert capsys.readouterr().err.startswith("scse: process 1: unknown command 'trian'; did you mean 'train'?")


def test_what_each_process_would_do_by_itself_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert cli.main(["diagnose", "runs/mine"]) == 2
    assert capsys.readouterr().err == (
        "scse: 'scse diagnose' runs in one process; start it without torchrun, or unset WORLD_SIZE\n"
    )
    assert set(cli.TOGETHER) <= set(cli.COMMANDS)


def test_gradients_are_exchanged_once_a_step(tmp_path):
    """One process that believes to be one of several: what counts is when it would speak to the others."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        objective = Objective(tiny("scse", dtype=torch.float32))
        module = torch.nn.parallel.DistributedDataParallel(objective)
        exchanged = []

        def exchange(state, bucket):
            exchanged.append(bucket.index())
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        module.register_comm_hook(None, exchange)
        rows = some_ids(2, 12)
        for last in (False, False, True):
            assert exchanged == []
            with distributed.accumulating(module, last):
                module(rows[:, :-1], rows[:, 1:], 2).backward()
        assert exchanged
    finally:
        torch.distributed.destroy_process_group()
