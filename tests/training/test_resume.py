"""A run that is interrupted, however and however often, ends with the weights of one that was not."""

from __future__ import annotations

import fcntl
import json
import math
import os
import random
import shutil
import signal
import subprocess
import threading
import time

import pytest
import torch
from interrupting import Killed, assert_same_run, killed_at, metric_steps

from forked import start
from runs import command, config_for, final_tensors, run, scse
from scse import load_model
from scse.errors import RunFailure, UserError
from scse.files import write_sealed
from scse.locks import in_use
from scse.runs.checkpoint import CheckpointStore
from scse.runs.folder import locked
from scse.training import trainer


def test_every_family_resumes_bit_identically(family, corpus, tmp_path):
    run(corpus, tmp_path / "whole", family)
    with pytest.MonkeyPatch.context() as patch:
        killed_at(patch, 8)
        with pytest.raises(Killed):
            run(corpus, tmp_path / "parts", family)
    outcome = run(corpus, tmp_path / "parts", family)
    assert outcome.finished
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert metric_steps(tmp_path / "parts") == (list(range(1, 10)), [3, 6, 9])


def test_seeds_decide_everything(corpus, tmp_path):
    run(corpus, tmp_path / "a")
    run(corpus, tmp_path / "b")
    run(corpus, tmp_path / "c", seed=1)
    assert_same_run(tmp_path / "a", tmp_path / "b")
    with pytest.raises(AssertionError):
        assert_same_run(tmp_path / "a", tmp_path / "c")


@pytest.mark.usefixtures("one_thread")
def test_sigkill_at_random_moments(corpus, tmp_path):
    """The installed command, killed without warning until it happens to finish."""
    steps, every = 60, ("--checkpoint-every", "5", "--eval-every", "7", "--quiet")
    run(corpus, tmp_path / "whole", steps=steps, run_options={"checkpoint_every": 5, "eval_every": 7})
    draw = random.Random(1)
    interrupted = 0
    for _ in range(60):
        process = start(command(corpus, tmp_path / "parts", *every, steps=steps), stdout=subprocess.DEVNULL)
        while process.poll() is None and not (tmp_path / "parts" / "metrics.jsonl").exists():
            time.sleep(0.02)
        time.sleep(draw.uniform(0.0, 0.4) if interrupted else 0.0)
        if interrupted < 4 and process.poll() is None:
            process.kill()
            interrupted += 1
        assert process.wait() in (0, -signal.SIGKILL), process.stderr.read()
        process.stderr.close()
        if process.returncode == 0:
            break
    assert process.returncode == 0
    assert interrupted > 0
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    leftovers = [p.name for p in (tmp_path / "parts").rglob(".*") if p.name != ".lock"]
    assert leftovers == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_save_and_exit_cleanly(corpus, tmp_path, number):
    out = tmp_path / "out"
    process = start(command(corpus, out, "--quiet", steps=4000))
    while not (out / "metrics.jsonl").exists() or len((out / "metrics.jsonl").read_text().splitlines()) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert "and saved; the same command continues" in stdout
    saved = CheckpointStore(out / "checkpoints", 2).newest()
    assert saved is not None
    assert saved.step == metric_steps(out)[0][-1]


def test_a_finished_run_is_left_alone(corpus, tmp_path):
    run(corpus, tmp_path / "out")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out" / "checkpoints").rglob("*")}
    assert run(corpus, tmp_path / "out").finished
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "out" / "checkpoints").rglob("*")}


def test_a_finished_run_needs_its_checkpoints_no_more(corpus, tmp_path):
    run(corpus, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "checkpoints")
    before = (tmp_path / "out" / "metrics.jsonl").read_bytes()
    assert run(corpus, tmp_path / "out").finished
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == before
    assert CheckpointStore(tmp_path / "out" / "checkpoints", 2).steps() == []


def test_the_final_model_is_the_last_checkpoint(corpus, tmp_path):
    run(corpus, tmp_path / "out")
    model = load_model(tmp_path / "out" / "model")
    weights, _ = final_tensors(tmp_path / "out")
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert (tmp_path / "out" / "model" / "tokenizer.json").exists()


def test_torn_and_foreign_lines_of_metrics_are_dropped_on_resume(corpus, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        killed_at(patch, 5)
        with pytest.raises(Killed):
            run(corpus, tmp_path / "out")
    with (tmp_path / "out" / "metrics.jsonl").open("a") as metrics:
        metrics.write('[1]\n{"note": "by hand"}\n{"step": 6, "lo')
    run(corpus, tmp_path / "out")
    assert metric_steps(tmp_path / "out") == (list(range(1, 10)), [3, 6, 9])


def test_a_run_can_be_trained_in_a_thread(corpus, tmp_path):
    """Signals are the main thread's affair; the weights are the same without them."""
    run(corpus, tmp_path / "main")
    thread = threading.Thread(target=run, args=(corpus, tmp_path / "thread"))
    thread.start()
    thread.join()
    assert_same_run(tmp_path / "main", tmp_path / "thread")


def test_a_lock_that_its_holder_took_away_is_taken_anew(tmp_path, monkeypatch):
    """A run that never began removes its lock file; whoever had just opened that file holds nothing."""
    taken = []

    def removing(handle, how):
        flock(handle, how)
        if not taken:
            (tmp_path / "out" / ".lock").unlink()
        taken.append(handle)

    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", removing)
    assert not in_use(tmp_path / "out")
    with locked(tmp_path / "out"):
        assert len(taken) == 2
        assert (tmp_path / "out" / ".lock").read_text() == f"{os.getpid()}\n"
        monkeypatch.undo()
        assert in_use(tmp_path / "out")


def test_files_are_readable_by_others(corpus, tmp_path):
    before = os.umask(0o022)
    try:
        run(corpus, tmp_path / "out")
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {"0o644"}


def test_a_perplexity_beyond_a_float_is_infinite_and_not_a_crash(corpus, tmp_path):
    """Embeddings this large put logits hundreds apart, and a wrong guess costs more than the 710 nats of e^710."""
    outcome = run(corpus, tmp_path / "out", init_std=100.0)
    assert outcome.finished
    assert outcome.validation_ppl == math.inf
    assert run(corpus, tmp_path / "out", init_std=100.0).validation_ppl == math.inf, "a checkpoint keeps it"


def test_a_missing_final_model_is_written_again(corpus, tmp_path):
    run(corpus, tmp_path / "out")
    (tmp_path / "out" / "model" / "model.safetensors").unlink()
    run(corpus, tmp_path / "out")
    assert load_model(tmp_path / "out" / "model")


@pytest.mark.parametrize("train", [[], {"steps": "abc"}, None])
def test_a_configuration_of_wrong_types_is_one_line(corpus, tmp_path, train):
    run(corpus, tmp_path / "out")
    stored = json.loads((tmp_path / "out" / "config.json").read_text())
    changed = {**stored["train"], **train} if isinstance(train, dict) else train
    (tmp_path / "out" / "config.json").write_text(json.dumps({**stored, "train": changed}))
    with pytest.raises(UserError):
        run(corpus, tmp_path / "out")


def reseal(path, **changes):
    """Change what a sealed file says, and its seal with it."""
    stated = json.loads(path.read_text())
    kept = {name: value for name, value in stated.items() if name not in ("format", "sha256")}
    write_sealed(path, stated["format"], {**kept, **changes})


def test_a_configuration_that_lacks_an_option_names_it(corpus, tmp_path):
    run(corpus, tmp_path / "out")
    path = tmp_path / "out" / "config.json"
    stated = json.loads(path.read_text())["train"]
    reseal(path, train={name: value for name, value in stated.items() if name != "clip"})
    with pytest.raises(UserError, match="the run's configuration lacks 'clip'"):
        run(corpus, tmp_path / "out")


def test_a_second_trainer_is_refused(corpus, tmp_path):
    with locked(tmp_path / "out"):
        result = scse(command(corpus, tmp_path / "out"))
    assert result.returncode == 2
    assert f"in use by another trainer (process {os.getpid()})" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("family", "change", "shown"),
    [
        ("looped", {}, "model.family: scse → looped"),
        ("scse", {"step_scale": 0.25}, "model.options.step_scale: 0.5 → 0.25"),
        ("scse", {"steps": 10}, "steps: 9 → 10"),
        ("scse", {"seed": 3}, "seed: 0 → 3"),
        ("scse", {"lr": 1e-4}, "lr: 0.003 → 0.0001"),
    ],
)
def test_changing_the_run_on_resume_is_refused(corpus, tmp_path, family, change, shown):
    run(corpus, tmp_path / "out")
    with pytest.raises(UserError) as refused:
        run(corpus, tmp_path / "out", family, **change)
    assert shown in str(refused.value)


def test_changed_data_is_refused(corpus, tmp_path):
    run(corpus, tmp_path / "out")
    with (corpus / "train.txt").open("a") as stream:
        stream.write(" more")
    with pytest.raises(UserError, match=r"data\.train"):
        run(corpus, tmp_path / "out")


def test_auto_precision_continues_with_the_precision_of_the_run(corpus, tmp_path):
    run(corpus, tmp_path / "out", precision="bfloat16")
    assert run(corpus, tmp_path / "out", precision="auto").finished
    with pytest.raises(UserError, match="precision: bfloat16 → float32"):
        run(corpus, tmp_path / "out", precision="float32")


def test_a_diverging_run_stops_and_names_step_depth_and_checkpoint(corpus, tmp_path, monkeypatch):
    original = trainer.Trainer._accumulate_gradients

    def diverge(self, step, loops):
        loss = original(self, step, loops)
        return loss * float("nan") if step == 4 else loss

    monkeypatch.setattr(trainer.Trainer, "_accumulate_gradients", diverge)
    with pytest.raises(RunFailure, match=r"step 5 at depth [123] gave a loss of nan.*step-3"):
        run(corpus, tmp_path / "out")
    assert CheckpointStore(tmp_path / "out" / "checkpoints", 2).steps() == [3]


def test_divergence_for_real_exits_with_1(corpus, tmp_path):
    result = scse(command(corpus, tmp_path / "out", "--quiet", lr=1e30, clip=1e30, warmup=0))
    assert result.returncode == 1
    assert "no checkpoint yet" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_full_disk_leaves_the_checkpoint_before_intact(corpus, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        with pytest.raises(RunFailure, match=r"No space left.*\(step-\d+\) is intact"):
            run(corpus, disk / "out", run_options={"keep": 9})
        newest = CheckpointStore(disk / "out" / "checkpoints", 9).newest()
        assert newest is not None
        assert not list((disk / "out" / "checkpoints").glob(".*"))
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_folder_that_cannot_be_written(corpus, tmp_path):
    (tmp_path / "file").write_text("")
    result = scse(command(corpus, tmp_path / "file" / "out"))
    assert result.returncode == 2
    assert "cannot write the run folder" in result.stderr


def test_checkpoints_without_a_configuration_are_not_overwritten(corpus, tmp_path):
    run(corpus, tmp_path / "out")
    (tmp_path / "out" / "config.json").unlink()
    with pytest.raises(UserError, match=r"no config\.json"):
        run(corpus, tmp_path / "out")


def test_the_configuration_round_trips(corpus):
    config = config_for(corpus)
    assert type(config).from_dict(json.loads(json.dumps(config.to_dict()))) == config
