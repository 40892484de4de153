"""`scse eval` on a real run: rows, records, other corpora, unfinished runs, and mistakes."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from runs import run, scse, write_corpus
from scse.cli import main
from scse.records import read_records
from scse.runs import open_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run and its corpus, trained once for all tests here."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("trained")
    corpus = write_corpus(folder / "corpus")
    run(corpus, folder / "run")
    return folder


@pytest.fixture
def copy(trained, tmp_path):
    shutil.copytree(trained / "run", tmp_path / "run")
    return tmp_path / "run"


def evaluate(run_folder, trained, *extra):
    return main(["eval", str(run_folder), "--cache-dir", str(trained / "cache"), "--quiet", *extra])


def test_another_task_of_depths(trained, copy, capsys):
    assert evaluate(copy, trained, "--task", "profile", "--depths", "1,2", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["depth"] for row in rows] == [1, 2]
    assert rows[0]["latency_ms"] > 0
    assert {record.identity["task"] for record in read_records([copy / "records.jsonl"])} == {"profile"}
    for wrong, message in ((["--task", "profil"], "did you mean 'profile'"), (["--task", "diagnose"], "has no depths"),
                           (["--task", "profile", "--cache", "exact"], "--task and --cache each choose")):  # fmt: skip
        assert evaluate(copy, trained, *wrong) == 2
        assert message in capsys.readouterr().err


def test_rows_and_records(trained, copy, capsys):
    assert evaluate(copy, trained, "--depths", "8,1,8,3", "--json", "--tag", "first") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["depth"] for row in rows] == [8, 1, 3]
    assert all(set(row) == {"depth", "nll", "ppl", "tokens"} for row in rows)
    records = read_records([copy / "records.jsonl"])
    assert [(r.depth, r.metrics["ppl"]) for r in records] == [(row["depth"], row["ppl"]) for row in rows]
    told = records[0].identity
    assert (told["split"], told["tag"], told["seed"], told["trained_steps"]) == ("test", "first", 0, 9)
    assert told["protocol"]["steps"] == 9
    assert told["model"]["family"] == "scse"


def test_another_corpus_with_the_runs_tokenizer(trained, copy, tmp_path, capsys):
    other = write_corpus(tmp_path / "other", words=900)
    assert evaluate(copy, trained, "--depths", "2", "--data", str(other), "--split", "valid", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["tokens"] < 400
    (record,) = read_records([copy / "records.jsonl"])
    assert record.identity["split"] == "validation"


def test_an_unfinished_run_is_evaluated_at_its_newest_checkpoint(trained, copy):
    (copy / "model" / "config.json").unlink()
    shutil.rmtree(copy / "checkpoints" / "step-9")
    opened = open_run(copy)
    assert opened.step == 6
    assert evaluate(copy, trained, "--depths", "1") == 0


def forget_weights(run_folder):
    (run_folder / "model" / "config.json").unlink()
    shutil.rmtree(run_folder / "checkpoints")


def put_checkpoint_of_another_model(run_folder):
    forget_weights(run_folder)
    corpus = write_corpus(run_folder.parent / "corpus")
    run(corpus, run_folder.parent / "other", "looped", steps=1)
    shutil.copytree(run_folder.parent / "other" / "checkpoints", run_folder / "checkpoints")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: shutil.rmtree(run), "config.json is missing"),
        (lambda run: (run / "config.json").write_text("{"), "not valid JSON"),
        (
            lambda run: (run / "config.json").write_text('{"model_type": "scse"}'),
            "exported for transformers and is no run",
        ),
        (lambda run: (run / "model" / "tokenizer.json").unlink(), "tokenizer"),
        (lambda run: (run / "model" / "model.safetensors").write_bytes(b"1234"), "model.safetensors is damaged"),
        (
            lambda run: [(run / "model" / "config.json").unlink(), shutil.rmtree(run / "checkpoints")],
            "no usable checkpoint",
        ),
        (put_checkpoint_of_another_model, "does not belong to this configuration"),
    ],
)
def test_runs_that_cannot_be_evaluated(trained, copy, capsys, damage, message):
    damage(copy)
    assert evaluate(copy, trained) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_foreign_tokenizer_is_refused(trained, copy, capsys):
    from scse.data.tokenizer import gpt2_tokenizer

    gpt2_tokenizer().save(copy / "model")
    assert evaluate(copy, trained) == 2
    assert "is not the tokenizer of this run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--depths", "0"], "must be at least 1"),
        (["--depths", ""], "whole numbers"),
        (["--split", "tst"], "test"),
        (["--limit", "0"], "--limit must be at least 1"),
        (["--data", "nowhere"], "unknown corpus"),
    ],
)
def test_mistakes(trained, copy, extra, message):
    result = scse(["eval", str(copy), "--cache-dir", str(trained / "cache"), *extra])
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (copy / "records.jsonl").exists()


def adapt(run_folder, trained, *extra):
    return main(["adaptive", str(run_folder), "--cache-dir", str(trained / "cache"), "--quiet", *extra])


def test_adaptive_rows_and_records(trained, copy, capsys):
    assert adapt(copy, trained, "--budgets", "2,3", "--ceiling", "6", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["budget"], row["mode"]) for row in rows] == [(b, m) for b in (2, 3) for m in ("offline", "online")]
    names = {"budget", "mode", "threshold", "mean_depth", "ppl", "seconds"}
    names |= {"static_depth", "static_ppl", "static_seconds"}
    assert all(set(row) == names for row in rows)
    assert rows[0]["ppl"] == pytest.approx(rows[1]["ppl"], rel=1e-6)
    records = read_records([copy / "records.jsonl"])
    assert [r.identity["adaptive"]["mode"] for r in records] == ["offline", "online"] * 2
    assert all(len(r.facts["histogram"]) == 6 for r in records)


def test_adaptive_to_a_quality_target(trained, copy, capsys):
    assert adapt(copy, trained, "--quality", "2", "--ceiling", "6", "--mode", "online", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    (record,) = read_records([copy / "records.jsonl"])
    assert record.identity["adaptive"]["quality"] == 2.0
    assert record.identity["adaptive"]["budget"] is None
    assert row["mode"] == "online"


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--budgets", "50"], "a budget of 50 is above the ceiling of 48 loops; raise it"),
        (["--rule", "updat"], "did you mean 'update'?"),
        (["--mode", "offlin"], "did you mean 'offline'?"),
        (["--ceiling", "0"], "--ceiling must be at least 1"),
        (["--quality", "1", "--mode", "token"], "whole examples"),
        (["--quality", "much"], "invalid float value"),
        (["--quality", "nan"], "a quality target must not be negative, and a number"),
        (["--quality", "1", "--budgets", "2"], "--budgets and --quality each say"),
    ],
)
def test_adaptive_mistakes(trained, copy, capsys, extra, message):
    assert adapt(copy, trained, *extra) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (copy / "records.jsonl").exists()
