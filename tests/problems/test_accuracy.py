"""Evaluating runs on problems: accuracy by difficulty and depth, early exit, generation, and mistakes."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

from runs import run, write_corpus
from scse.cli import main
from scse.data import UNCOUNTED, Sequences
from scse.evaluation.accuracy import right_answers, score, settling
from scse.evaluation.budgets import loops_by_difficulty
from scse.records import read_records
from scse.runs import open_run
from scse.tasks import TASKS, Column, Selection, Where


@pytest.fixture
def copy(chase_run, tmp_path):
    shutil.copytree(chase_run, tmp_path / "run")
    return tmp_path / "run"


def test_rows_by_difficulty_and_depth(copy, capsys):
    assert main(["eval", str(copy), "--depths", "1,2,4", "--quiet", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["difficulty"], row["depth"]) for row in rows} == {(d, t) for d in (2, 4, 5, "all") for t in (1, 2, 4)}
    for row in rows:
        assert 0 <= row["exact"] <= 1
        assert row["difficulty"] != "all" or row["exact"] <= row["accuracy"]
        assert row["accuracy"] <= 1
        assert row["answers"] >= row["examples"] > 0
    records = read_records([copy / "records.jsonl"])
    assert len(records) == len(rows)
    assert {record.identity["settings"]["difficulty"] for record in records} == {2, 4, 5, "all"}
    assert {record.identity["task"] for record in records} == {"accuracy"}

    assert main(["eval", str(copy), "--depths", "2", "--difficulty", "1,3", "--quiet", "--json"]) == 0
    assert [row["difficulty"] for row in json.loads(capsys.readouterr().out)] == [1, 3]


def test_columns_find_their_records(chase_run, tmp_path):
    shutil.copytree(chase_run, tmp_path / "run")
    opened = open_run(tmp_path / "run")
    task = TASKS.find("accuracy")
    columns = [Column("a", "accuracy", "accuracy", depth=2, difficulty=2), Column("b", "accuracy", "exact", depth=4)]
    found = task.evaluate(opened, Selection(limit=64, show=False), columns)
    for column in columns:
        asked = task.asked(Where("pointer-chase", "test", 64), column)
        (record,) = [r for r in found.records if all(r.identity[name] == value for name, value in asked.items())]
        assert column.metric in record.metrics


def test_accuracy_is_the_share_of_right_answers():
    targets = np.array([[UNCOUNTED, 1, 2], [UNCOUNTED, 3, 4]])
    data = Sequences(np.zeros((2, 3), np.int64), targets, np.array([[0, 1, 2], [0, 1, 1]]))
    right = np.array([[True, True, False], [True, True, True]])
    every = score(data, right, 4, None)
    assert (every.accuracy, every.exact, every.examples, every.answers) == (0.75, 0.5, 2, 4)
    hard = score(data, right, 4, 2)
    assert (hard.accuracy, hard.exact, hard.examples, hard.answers) == (0.0, 0.0, 1, 1)
    assert score(data, right, 4, 3) is None


def test_one_unroll_answers_as_single_depths_do(chase_run):
    opened = open_run(chase_run)
    data = opened.corpus(None, None, None).split("test").tokens
    together = right_answers(opened.model, data, [1, 3], batch=7, limit=20)
    with torch.no_grad():
        for depth in (1, 3):
            chosen = opened.model(torch.from_numpy(data.ids[:20]), depth).argmax(-1).numpy()
            expected = (chosen == data.targets[:20]) | (data.targets[:20] == UNCOUNTED)
            assert np.array_equal(together[depth], expected)


def test_an_answer_settles_at_the_first_loop_that_leaves_it(chase_run):
    opened = open_run(chase_run)
    data = opened.corpus(None, None, None).split("test").tokens
    taken, right = settling(opened.model, data, ceiling=5, batch=3, limit=7)
    assert taken.shape == right.shape == (7, data.ids.shape[1])
    said = opened.model.trajectory(torch.from_numpy(data.ids[:7]), 5, keep=("predictions",)).predictions.numpy()
    for row, place in np.ndindex(*taken.shape):
        path = said[:, row, place]
        first = next((t for t in range(1, 6) if path[t] == path[t - 1]), 5)
        assert taken[row, place] == first
        assert right[row, place] == (path[first] == data.targets[row, place])


def test_early_exit_and_generation_work_on_a_problem(copy, capsys):
    line = ["adaptive", str(copy), "--budgets", "4", "--ceiling", "6", "--limit", "32", "--quiet", "--json"]
    assert main(line) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["mode"] for row in rows} == {"offline", "online"}
    assert rows[0]["mean_depth"] == rows[1]["mean_depth"]
    assert set(rows[0]["by_difficulty"]) <= {"1", "2"}
    picture = copy / "exits.svg"
    assert main([*line[:-1], "--mode", "token", "--picture", str(picture)]) == 0
    assert "Mean loops by difficulty" in capsys.readouterr().out
    assert "<svg" in picture.read_text()
    assert main(["generate", str(copy), "--prompt", "a→b b→b a?", "--max-new-tokens", "3"]) == 0
    assert capsys.readouterr().out.startswith("a→b b→b a? ")
    assert main(["generate", str(copy), "--prompt", "a→b bb"]) == 2
    assert "unknown word 'bb'; did you mean 'b→b'?" in capsys.readouterr().err


def test_loops_by_difficulty_are_means_over_examples_or_answers():
    targets = np.array([[UNCOUNTED, 1, 2], [UNCOUNTED, 3, 4]])
    data = Sequences(np.zeros((2, 3), np.int64), targets, np.array([[0, 1, 3], [0, 1, 1]]))
    assert loops_by_difficulty(data, np.array([5, 2]), by_token=False) == {1: 2.0, 3: 5.0}
    assert loops_by_difficulty(data, np.array([9, 2, 6, 9, 4, 6]), by_token=True) == {1: 4.0, 3: 6.0}
    assert loops_by_difficulty(data, np.array([9, 2, 6]), by_token=True) == {1: 2.0, 3: 6.0}, "of the first example"
    assert loops_by_difficulty(np.arange(9), np.array([1, 2]), by_token=True) == {}


def test_mistakes_are_one_line(copy, tmp_path, capsys):
    assert main(["eval", str(copy), "--difficulty", "9", "--quiet"]) == 2
    assert "difficulty must be between 1 and 5" in capsys.readouterr().err
    assert main(["eval", str(copy), "--data", "stdlib", "--quiet"]) == 2
    assert "was trained on pointer-chase and cannot read stdlib" in capsys.readouterr().err
    assert main(["lambada", str(copy), "--quiet"]) == 2
    assert "was trained on pointer-chase and cannot read lambada" in capsys.readouterr().err
    text = write_corpus(tmp_path / "corpus")
    run(text, tmp_path / "text")
    cache = ["--cache-dir", str(tmp_path / "cache"), "--quiet"]
    assert main(["eval", str(tmp_path / "text"), "--difficulty", "3", *cache]) == 2
    assert "was trained on text (corpus), whose answers have no difficulty" in capsys.readouterr().err
    assert main(["eval", str(tmp_path / "text"), "--data", "pointer-chase", *cache]) == 2
    assert "cannot read pointer-chase" in capsys.readouterr().err
