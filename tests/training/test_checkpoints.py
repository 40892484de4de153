"""Checkpoints: kept, pruned, and never believed when damaged or foreign."""

from __future__ import annotations

import json
import logging
import os
import shutil

import pytest
import torch
from interrupting import Killed, assert_same_run, killed_at
from safetensors.torch import load_file

from runs import config_for, final_tensors, run
from scse import LoopedLM
from scse.errors import UserError
from scse.files import write_sealed
from scse.nn.storage import ALIGNMENT
from scse.runs import checkpoint
from scse.runs.checkpoint import (
    Checkpoint,
    CheckpointStore,
    TrainingTensors,
    Validation,
    verify,
)
from scse.runs.restoring import collect, restore
from scse.training import trainer
from scse.training.optimiser import make_optimiser
from tinymodels import shift_tensors


def test_the_last_checkpoints_and_the_best_are_kept(corpus, tmp_path, monkeypatch):
    scores = iter([5.0, 3.0, 9.0, 9.0, 9.0, 9.0])
    monkeypatch.setattr(trainer.Trainer, "_validate", lambda self: Validation(next(scores), 3))
    run(corpus, tmp_path / "out", steps=18)
    assert CheckpointStore(tmp_path / "out" / "checkpoints", 2).steps() == [18, 15, 6]


def test_time_alone_makes_a_checkpoint_due_and_the_next_one_replaces_it(corpus, tmp_path, monkeypatch):
    """Every step is too long ago: each is saved, and what is left is what an unhurried run leaves."""
    saved = []
    save = CheckpointStore.save

    def watched(self, step, *rest, interim=False):
        saved.append((step, interim))
        save(self, step, *rest, interim=interim)

    run(corpus, tmp_path / "calm")
    monkeypatch.setattr(CheckpointStore, "save", watched)
    run(corpus, tmp_path / "hurried", run_options={"checkpoint_minutes": 1e-9})
    assert saved == [(step, step % 3 != 0) for step in range(1, 10)]
    left = [sorted(path.name for path in (tmp_path / name / "checkpoints").iterdir()) for name in ("calm", "hurried")]
    assert left[0] == left[1]
    assert_same_run(tmp_path / "calm", tmp_path / "hurried")


def validations(out):
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {row["validation_loops"]: row["validation_ppl"] for row in rows if "validation_ppl" in row}


def test_validation_is_at_the_deepest_trained_depth_or_at_the_one_asked_for(corpus, tmp_path):
    """Which depth it is changes no weight, so a run may be continued with another."""
    outcome = run(corpus, tmp_path / "out", steps=3, max_loops=5)
    assert outcome.validation == Validation(validations(tmp_path / "out")[5], 5)
    other = run(corpus, tmp_path / "deep", run_options={"eval_loops": 12}, steps=3, max_loops=5)
    assert other.validation == Validation(validations(tmp_path / "deep")[12], 12)
    assert run(corpus, tmp_path / "deep", steps=3, max_loops=5).validation == other.validation, "as it was measured"
    for ours, theirs in zip(final_tensors(tmp_path / "out"), final_tensors(tmp_path / "deep"), strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    with pytest.raises(UserError, match="eval_loops must be at least 1"):
        run(corpus, tmp_path / "out", run_options={"eval_loops": 0})


def test_an_interim_checkpoint_goes_even_if_it_is_the_best(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    for step, ppl, interim in ((1, 5.0, False), (2, 1.0, True), (3, 4.0, False), (4, 6.0, False)):
        store.save(step, TrainingTensors({"w": torch.ones(1)}, {}), Validation(ppl, 8), interim)
    assert store.steps() == [4, 3], "as without the stop after step 2"


def test_the_best_is_found_among_perplexities_of_one_depth(tmp_path):
    """As when an old run, validated at depth 8 without saying so, is continued with max_loops=32."""
    store = CheckpointStore(tmp_path, keep=1)
    for step, ppl in ((1, 2.0), (2, 3.0)):
        store.save(step, TrainingTensors({"w": torch.zeros(1)}, {}), Validation(ppl, 8))
        stated = json.loads((tmp_path / f"step-{step}" / "state.json").read_text())
        kept = {name: stated[name] for name in ("step", "validation_ppl", "files")}
        write_sealed(tmp_path / f"step-{step}" / "state.json", stated["format"], kept)
    assert store.newest().validation == Validation(3.0, 8)
    assert store.steps() == [2, 1]
    store.save(3, TrainingTensors({"w": torch.zeros(1)}, {}), Validation(9.0, 32))
    assert store.steps() == [3]
    store.save(4, TrainingTensors({"w": torch.zeros(1)}, {}), Validation(10.0, 32))
    assert store.steps() == [4, 3]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "delete"])
def test_a_damaged_newest_checkpoint_is_reported_and_the_one_before_used(corpus, tmp_path, caplog, name, damage):
    run(corpus, tmp_path / "whole")
    run(corpus, tmp_path / "out")
    path = tmp_path / "out" / "checkpoints" / "step-9" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    if damage == "delete":
        path.unlink()
    else:
        path.write_bytes(content if damage == "flip" else content[: len(content) // 2])
    with caplog.at_level(logging.WARNING, "scse"):
        run(corpus, tmp_path / "out")
    assert "step-9 is damaged" in caplog.text
    assert_same_run(tmp_path / "whole", tmp_path / "out")


def test_the_place_of_tensors_in_a_checkpoint_changes_nothing(corpus, tmp_path):
    run(corpus, tmp_path / "out")
    folder = tmp_path / "out" / "checkpoints" / "step-9"
    expected = {}
    for name in ("model.safetensors", "optimizer.safetensors"):
        expected |= {tensor: value.clone() for tensor, value in load_file(folder / name).items()}
        shift_tensors(folder / name, by=4)
    config = config_for(corpus)
    model = LoopedLM(config.model, seed=5)
    optimiser = make_optimiser(model, config)
    restore(Checkpoint(folder, 9, None), model, optimiser, 9)
    collected = collect(model, optimiser)
    found = collected.weights | collected.moments
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    held = [*model.parameters(), *(state["exp_avg"] for state in optimiser.state.values())]
    assert {tensor.data_ptr() % ALIGNMENT for tensor in held} == {0}


def test_a_damaged_checkpoint_never_displaces_good_ones(corpus, tmp_path):
    """With one checkpoint kept, a damaged newer one must not make the trainer prune what it has just written."""
    keep_one = {"keep": 1, "checkpoint_every": 2}
    run(corpus, tmp_path / "out", run_options=keep_one)
    (tmp_path / "out" / "checkpoints" / "step-9" / "model.safetensors").write_bytes(b"broken")
    with pytest.MonkeyPatch.context() as patch:
        killed_at(patch, 5)
        with pytest.raises(Killed):
            run(corpus, tmp_path / "out", run_options=keep_one)
    store = CheckpointStore(tmp_path / "out" / "checkpoints", 1)
    assert store.newest().step == 4
    assert (tmp_path / "out" / "checkpoints" / "damaged-step-9").exists()
    assert run(corpus, tmp_path / "out", run_options=keep_one).finished


def test_what_was_not_pruned_when_the_last_checkpoint_was_written_is_pruned_later(corpus, tmp_path):
    """Killed between the two, the run is finished, and nothing else would ever look at its checkpoints again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointStore, "prune", lambda self: None)
        run(corpus, tmp_path / "out", run_options={"checkpoint_every": 1, "eval_every": 100})
    store = CheckpointStore(tmp_path / "out" / "checkpoints", 2)
    assert len(store.steps()) == 9
    run(corpus, tmp_path / "out", run_options={"checkpoint_every": 1, "eval_every": 100})
    assert len(store.steps()) <= 3, "the last two, and the best"


def test_a_checkpoint_under_another_name_is_not_believed(corpus, tmp_path, caplog):
    run(corpus, tmp_path / "out")
    checkpoints = tmp_path / "out" / "checkpoints"
    shutil.rmtree(checkpoints / "step-9")
    shutil.copytree(checkpoints / "step-6", checkpoints / "step-8")
    caplog.set_level(logging.INFO, "scse")
    run(corpus, tmp_path / "out")
    assert "step-8 is damaged" in caplog.text
    assert "state.json says step 6" in caplog.text
    assert "from step 6" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "looped"}, r"step-6 does not belong to this model: tensor '\S+' is in only one of them"),
        ({"width": 48}, r"step-6: tensor '\S+' has shape \(300, 48\), the model needs \(300, 24\)"),
    ],
    ids=["family", "width"],
)
def test_a_checkpoint_of_another_run_is_refused(corpus, tmp_path, changes, message):
    run(corpus, tmp_path / "other", **changes)
    run(corpus, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "checkpoints")
    shutil.copytree(tmp_path / "other" / "checkpoints" / "step-6", tmp_path / "out" / "checkpoints" / "step-6")
    with pytest.raises(UserError, match=message):
        run(corpus, tmp_path / "out")


def test_an_old_checkpoint_with_a_damaged_state_is_pruned_like_any_other(corpus, tmp_path):
    run(corpus, tmp_path / "out")
    checkpoints = tmp_path / "out" / "checkpoints"
    shutil.rmtree(checkpoints / "step-9")
    shutil.copytree(checkpoints / "step-6", checkpoints / "step-1")
    (checkpoints / "step-1" / "state.json").write_text("{")
    run(corpus, tmp_path / "out", run_options={"keep": 1})
    assert "step-1" not in os.listdir(checkpoints)
    assert "step-9" in os.listdir(checkpoints)


def test_a_checkpoint_saved_twice_is_the_second(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    for value in (1.0, 2.0):
        store.save(3, TrainingTensors({"w": torch.tensor([value])}, {}), None)
    assert load_file(tmp_path / "step-3" / "model.safetensors")["w"].item() == 2.0
    assert os.listdir(tmp_path) == ["step-3"]


def test_a_checkpoint_that_is_pruned_while_it_is_looked_at_is_passed_over(tmp_path, monkeypatch, caplog):
    store = CheckpointStore(tmp_path, keep=2)
    for step in (3, 6):
        store.save(step, TrainingTensors({"w": torch.zeros(1)}, {}), None)

    def pruned_meanwhile(folder):
        if folder.name == "step-6":
            shutil.rmtree(folder)
        return verify(folder)

    monkeypatch.setattr(checkpoint, "verify", pruned_meanwhile)
    assert store.newest().step == 3
    assert caplog.text == "", "nothing was damaged"
