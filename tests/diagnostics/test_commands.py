"""`scse diagnose` and `scse theory` at the boundary a user meets."""

from __future__ import annotations

import json

import pytest
import torch

from runs import run, scse, write_corpus
from scse.cli import main
from scse.records import read_records


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three tiny trained runs: one with a source, one without, one without an anchor."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("commands")
    corpus = write_corpus(root / "corpus")
    for family in ("looped", "scse", "unshared-2"):
        run(corpus, root / family, family)
    return root


def options(folder):
    return ["--quiet", "--cache-dir", str(folder / "cache")]


def records_of(path, task):
    return [record for record in read_records([path / "records.jsonl"]) if record.identity["task"] == task]


def test_diagnose_judges_stability(folder, capsys):
    arguments = ["diagnose", str(folder / "looped"), "--steps", "6", "--batch", "4", *options(folder)]
    assert main([*arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["step"] for row in rows] == list(range(6))
    assert rows[0]["expansion"] >= rows[0]["gain"] > 0
    assert rows[5]["stability"] in ("contracts", "neutral", "expands")
    assert rows[2]["expansion"] is None is rows[2]["stability"]
    assert not any(row["beyond_trained_range"] for row in rows[:4]), "the run was trained at up to 3 loops"
    assert records_of(folder / "looped", "diagnose")[0].metrics["expansion"] == rows[0]["expansion"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "at step 5: the worst direction grows" in printed
    assert "trained depths 0 … 3" in printed


def test_a_quicker_diagnosis_keeps_the_gains_that_were_measured(folder, capsys):
    arguments = ["diagnose", str(folder / "looped"), "--steps", "3", *options(folder), "--json"]

    def of_step(step, settings=None):
        (found,) = (
            record.metrics
            for record in records_of(folder / "looped", "diagnose")
            if (record.depth, record.identity.get("settings")) == (step, settings) and record.identity["limit"] == 8
        )
        return found

    assert main([*arguments, "--gain", "0,1", "--batch", "8", "--batches", "1"]) == 0
    first = of_step(1)
    assert main([*arguments, "--batch", "8", "--batches", "1"]) == 0
    assert of_step(1) == first
    assert main([*arguments, "--batch", "4", "--batches", "2"]) == 0
    assert "gain" not in of_step(1, {"batches": 2}), "other batches are another evaluation"
    assert of_step(1) == first
    capsys.readouterr()


def test_diagnose_fails_on_a_broken_claim(folder, capsys, monkeypatch):
    from scse.recurrence.updates import SharedCore

    original = SharedCore.forward
    monkeypatch.setattr(SharedCore, "forward", lambda self, *given: original(self, *given) + 0.1)
    assert main(["diagnose", str(folder / "scse"), "--steps", "3", "--batch", "4", *options(folder)]) == 1
    assert "claims a fixed anchor (before the mask), but its map moves there" in capsys.readouterr().err


def test_steering(folder, capsys, tmp_path):
    picture = tmp_path / "steering.png"
    arguments = ["diagnose", str(folder / "looped"), "--steering", str(picture), "--inputs", "3", "--steps", "7"]
    assert main([*arguments, "--json", *options(folder)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["inputs"]) == 3
    assert answer["has_source"]
    assert 0 < answer["summary"]["share_lowest"] <= answer["summary"]["share_rms"] <= answer["summary"]["share_highest"]
    assert picture.stat().st_size > 10_000
    (record,) = records_of(folder / "looped", "steering")
    assert (record.depth, record.identity["limit"]) == (7, 3)
    assert record.metrics == answer["summary"]
    assert main([*arguments, *options(folder)]) == 0
    assert "cosines to the forcing ray" in capsys.readouterr().out


def test_steering_without_a_source_says_so(folder, capsys, tmp_path):
    arguments = ["diagnose", str(folder / "scse"), "--steering", str(tmp_path / "s.svg"), "--steps", "4"]
    assert main([*arguments, *options(folder)]) == 0
    printed = capsys.readouterr().out
    assert "nothing moves: the anchor is a fixed point" in printed
    assert "no injection with a gain of its own" in printed
    assert "no injection with a gain of its own" in (tmp_path / "s.svg").read_text()


def test_theory(folder, capsys):
    arguments = ["theory", str(folder / "looped"), "--from", "2", "--to", "6", *options(folder)]
    assert main([*arguments, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["from"], answer["to"], answer["map"]) == (2, 6, "as used")
    assert [row["step"] for row in answer["steps"]] == [2, 3, 4, 5]
    assert answer["mean"]["theorem_residual"] < 1e-6
    assert sum(row["loss"] for row in answer["steps"]) == pytest.approx(answer["mean"]["gap"], abs=1e-6)
    assert sum(row["along"] for row in answer["steps"]) == pytest.approx(answer["mean"]["response"], rel=1e-5)
    assert sum(answer["mean"][kind] for kind in ("harmful", "neutral", "beneficial")) == len(answer["inputs"]) == 2
    assert (folder / "looped" / "theory.png").stat().st_size > 10_000
    assert main([*arguments[:3], "1", *arguments[4:]]) == 0
    assert "verdict: " in capsys.readouterr().out
    assert {record.identity["settings"]["from"] for record in records_of(folder / "looped", "theory")} == {1, 2}


def test_theory_of_a_recurrence_without_forcing(folder, capsys, tmp_path):
    arguments = ["theory", str(folder / "scse"), "--from", "1", "--to", "4", "--inputs", "1", *options(folder)]
    assert main([*arguments, "--figure", str(tmp_path / "none.svg")]) == 0
    printed = capsys.readouterr().out
    assert "map: raw (before the mask, which is a jump)" in printed
    assert "verdict: neutral on average" in printed
    assert "nothing to attribute" in (tmp_path / "none.svg").read_text()


def test_a_run_without_an_anchor_is_diagnosed_as_far_as_that_goes(folder):
    done = scse(["diagnose", str(folder / "unshared-2"), "--steps", "3", *options(folder)])
    assert done.returncode == 0, done.stderr
    assert "this family has no anchor, so forcing, deviations and gains do not exist" in done.stdout
    assert "input_dependence" in done.stdout
    assert "bias_ratio" not in done.stdout


@pytest.mark.parametrize("command", [["theory", "--to", "9"], ["diagnose", "--steering", "x.png"]])
def test_runs_without_an_anchor_are_answered_in_one_line(folder, command):
    name, *extra = command
    done = scse([name, str(folder / "unshared-2"), *extra, *options(folder)])
    assert done.returncode == 2
    assert "this family has no anchor" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["theory", "--from", "9", "--to", "9"], "--from must be at least 0 and below --to"),
        (["theory", "--from", "-1"], "--from must be at least 0"),
        (["theory", "--inputs", "0"], "--inputs must be at least 1"),
        (["theory", "--figure", "x.jpg"], "--figure must end in .png or .svg"),
        (["theory", "--limit", "3"], "unknown argument '--limit'"),
        (["diagnose", "--steering", "x.gif"], "--steering must end in .png or .svg"),
        (["diagnose", "--inputs", "0"], "--inputs must be at least 1"),
    ],
)
def test_mistakes_are_one_line(folder, arguments, message):
    name, *extra = arguments
    done = scse([name, str(folder / "looped"), *extra, *options(folder)])
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
