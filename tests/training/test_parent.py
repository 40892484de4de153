"""Runs that begin with the weights of another, and configurations stored before they could say so."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from interrupting import Killed, assert_same_run, killed_at

from runs import command, config_for, final_tensors, options, run, write_corpus
from scse.cli import main
from scse.config import TrainConfig, assemble, trained_as
from scse.config.stored import neutral_fields
from scse.errors import UserError
from scse.records import identity, new_record
from scse.runs.folder import read_run_config
from scse.runs.parent import find_start
from scse.training import trainer
from scse.training.trainer import train


def begin(corpus, text, out, family=None, **changes):
    """What `scse train --from` does."""
    start = find_start(str(text), out)
    settings = start.settings(family, {"steps": 3, "precision": "float32", **changes})
    config = start.child(assemble(family or start.config.model.family, settings))
    return train(config, out, options(corpus.parent / "cache", start=start.folder))


def record_of(folder, depth=8):
    config, _ = read_run_config(folder)
    return new_record(identity(config, config.steps, dataset="x", split="test", depth=depth), {"ppl": 1.0}, "")


def test_at_the_same_learning_rate_it_is_one_longer_run(corpus, tmp_path, monkeypatch):
    """Weights, moments, data, depths, dropout and AdamW's count go on, over two generations."""
    monkeypatch.setattr(trainer, "learning_rate", lambda config, step: 3e-3)
    run(corpus, tmp_path / "whole")
    run(corpus, tmp_path / "a", steps=3)
    begin(corpus, tmp_path / "a", tmp_path / "b")
    begin(corpus, f"{tmp_path / 'b'}@3", tmp_path / "c")
    for ours, theirs in zip(final_tensors(tmp_path / "c"), final_tensors(tmp_path / "whole"), strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_an_interrupted_child_ends_as_an_undisturbed_one(corpus, tmp_path):
    run(corpus, tmp_path / "parent")
    begin(corpus, tmp_path / "parent", tmp_path / "whole", steps=6)
    for stop in (1, 4):
        with pytest.MonkeyPatch.context() as patch:
            killed_at(patch, stop)
            with pytest.raises(Killed):
                begin(corpus, tmp_path / "parent", tmp_path / "parts", steps=6)
    begin(corpus, tmp_path / "parent", tmp_path / "parts", steps=6)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_child_is_told_apart_and_its_seeds_belong_together(corpus, tmp_path):
    for seed in (0, 1):
        run(corpus, tmp_path / f"parent{seed}", seed=seed)
        begin(corpus, tmp_path / f"parent{seed}", tmp_path / f"child{seed}", steps=9)
    begin(corpus, tmp_path / "parent0", tmp_path / "other", steps=9, seed=1)
    stated = json.loads((tmp_path / "child0" / "config.json").read_text())["train"]["parent"]
    assert (stated["seed"], stated["step"], stated["total"]) == (0, 9, 9)
    assert len(stated["weights"]) == len(stated["config"]) == 64
    parent, child = record_of(tmp_path / "parent0"), record_of(tmp_path / "child0")
    assert parent.key != child.key
    assert "parent" not in parent.identity["protocol"]
    assert child.group == record_of(tmp_path / "child1").group
    assert child.group != record_of(tmp_path / "other").group, "both of its seeds began from one run"
    settings = {**parent.identity["protocol"], **parent.identity["model"]["shape"], "data": str(corpus)}
    plain = {name: value for name, value in settings.items() if name not in ("corpus", "data_seed", "vocabulary")}
    assert trained_as(parent.identity, "scse", plain)
    assert not trained_as(child.identity, "scse", plain)


def test_a_child_goes_on_when_its_parent_has_changed_or_gone(corpus, tmp_path):
    run(corpus, tmp_path / "parent")
    with pytest.MonkeyPatch.context() as patch:
        killed_at(patch, 4)
        with pytest.raises(Killed):
            begin(corpus, tmp_path / "parent", tmp_path / "child", steps=6)
    shutil.rmtree(tmp_path / "parent")
    assert begin(corpus, tmp_path / "parent", tmp_path / "child", steps=6).finished
    with pytest.raises(UserError, match=r"no run in .*parent"):
        begin(corpus, tmp_path / "parent", tmp_path / "second")


def test_another_text_is_read_with_the_parents_tokenizer(corpus, tmp_path):
    run(corpus, tmp_path / "parent")
    other = write_corpus(tmp_path / "other", words=2000)
    (other / "train.txt").write_text((other / "train.txt").read_text().replace("anchor", "harbour"))
    begin(corpus, tmp_path / "parent", tmp_path / "child", data=str(other))
    digests = [read_run_config(tmp_path / name)[1]["tokenizer"] for name in ("parent", "child")]
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        ("parent@4", {}, r"no checkpoint at step 4 \(there are: 6, 9\)"),
        ("nowhere", {}, "no run in .*nowhere"),
        ("parent", {"width": 32}, r"tensor '\S+' has shape \(\d+, 24\), the model needs \(\d+, 32\)"),
        ("parent", {"family": "looped"}, "is in only one of them"),
        ("parent", {"tokenizer": "bpe-310"}, "'bpe-310' is not 'bpe-300'; leave --vocab out"),
        ("parent", {"data": "pointer-chase"}, "a run on text cannot begin from one on a problem, nor the other way"),
        ("parent", {"depths": "curriculum:3:4"}, "cannot grow over the first 4 steps: the run it begins from has 9"),
    ],
)
def test_what_cannot_be_begun_leaves_nothing_behind(corpus, tmp_path, text, changes, message):
    run(corpus, tmp_path / "parent")
    with pytest.raises(UserError, match=message):
        begin(corpus, tmp_path / text, tmp_path / "child", **changes)
    assert not (tmp_path / "child").exists()


def test_other_weights_under_the_same_name_are_refused(corpus, tmp_path):
    run(corpus, tmp_path / "parent")
    start = find_start(str(tmp_path / "parent"), tmp_path / "child")
    config = start.child(assemble("scse", start.settings(None, {"steps": 3, "precision": "float32"})))
    run(corpus, tmp_path / "else", seed=1)
    elsewhere = tmp_path / "else" / "checkpoints" / "step-9"
    with pytest.raises(UserError, match="does not hold the weights this run began with"):
        train(config, tmp_path / "child", options(corpus.parent / "cache", start=elsewhere))
    with pytest.raises(UserError, match="name that run with --from"):
        train(config, tmp_path / "elsewhere", options(corpus.parent / "cache"))


def test_the_command_names_the_way_and_the_way_works(corpus, tmp_path, capsys):
    assert main(command(corpus, tmp_path / "a", "--quiet", "--family", "looped")) == 0
    assert main(command(corpus, tmp_path / "a", "--quiet", "--family", "looped", steps=12)) == 2
    said = capsys.readouterr().err
    assert "steps: 9 → 12" in said
    assert f"scse train --from {tmp_path / 'a'} --steps MORE --out NEW" in said
    again = ["train", "--from", str(tmp_path / "a"), "--steps", "3", "--out", str(tmp_path / "b"), "--quiet"]
    again += ["--cache-dir", str(corpus.parent / "cache"), "--precision", "float32"]
    for _ in range(2):
        assert main(again) == 0
        assert f"{tmp_path / 'b'}: 3 steps done, validation perplexity" in capsys.readouterr().out
    config, _ = read_run_config(tmp_path / "b")
    assert (config.model.family, config.max_loops, config.lr) == ("looped", 3, 3e-3)
    assert main([*again[:6], str(tmp_path / "a"), *again[7:]]) == 2
    assert "give the new run a folder of its own" in capsys.readouterr().err
    assert main([*again[:3], *again[5:]]) == 2
    assert "the number of steps is missing" in capsys.readouterr().err


# ------------------------------------------------- what was stored before


def test_a_configuration_stored_before_a_field_existed(corpus, tmp_path):
    """It reads, is equal to the same run's of today, is continued, and its records keep their identity."""
    config = config_for(corpus)
    today = config.to_dict()
    fields_of_the_first_runs = {
        "model", "corpus", "tokenizer", "steps", "batch", "micro_batches", "lr", "warmup", "weight_decay", "beta1",
        "beta2", "clip", "max_loops", "seed", "data_seed", "precision",
    }  # fmt: skip
    assert set(today) == fields_of_the_first_runs, "a neutral field is not stored"
    assert TrainConfig.from_dict(today) == config
    assert TrainConfig.from_dict({**today, **neutral_fields(TrainConfig)}) == config, (
        "stated or not, neutral is the same"
    )
    assert set(config.protocol()) == fields_of_the_first_runs - {"model", "seed"}
    with pytest.raises(UserError, match="lacks 'clip'"):
        TrainConfig.from_dict({name: value for name, value in today.items() if name != "clip"})
