"""Quality against cost: the points' costs, the frontier, the command and its picture."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from runs import run, write_corpus
from scse.accounting import flop_proxy
from scse.cli import main
from scse.config.adaptive import AdaptiveSettings
from scse.evaluation.calibration import UnreachableBudget
from scse.evaluation.pareto import ParetoEvaluation, ParetoPoint, frontier
from scse.evaluation.perplexity import perplexity_over_depths
from scse.records import read_records
from tinymodels import TINY, tiny

TOKENS = np.random.default_rng(0).integers(0, TINY.vocabulary, 200).astype(np.uint16)


@pytest.mark.parametrize("family", ["scse", "forcing-subtraction", "unshared-3"])
def test_costs_are_those_of_the_accounting(family):
    model = tiny(family)
    points = ParetoEvaluation("run", model, 4, None).fixed(TOKENS, [1, 3])
    for point in points:
        assert point.flops == flop_proxy(model.config, int(point.depth)).body_head
        (static,) = perplexity_over_depths(model, TOKENS, [int(point.depth)], 4)
        assert point.ppl == static.ppl
        bodies = 2 if family == "forcing-subtraction" else 1
        assert point.cache_bytes == 2 * TINY.width * 4 * bodies * point.depth


def test_unshared_layers_have_no_points_past_their_depth():
    evaluation = ParetoEvaluation("run", tiny("unshared-3"), 4, None)
    assert [point.depth for point in evaluation.fixed(TOKENS, [1, 3, 8, 48])] == [1, 3]
    assert not evaluation.adapts


def test_adaptive_points_cost_their_mean_depth():
    model = tiny("scse", spread=0.08)
    settings = AdaptiveSettings(budgets=(3,), ceiling=8)
    ((point,), unreachable) = ParetoEvaluation("run", model, 4, None).adaptive(TOKENS, TOKENS, settings)
    assert not unreachable
    one, two = (flop_proxy(model.config, depth).body_head for depth in (1, 2))
    assert point.flops == pytest.approx(one + (point.depth - 1) * (two - one))
    assert abs(point.depth - 3) < 1


def test_the_frontier_by_hand():
    def point(ppl, flops):
        return ParetoPoint("r", "scse", "fixed", None, 1.0, ppl, flops, 1.0, 1.0)

    a, b, c, d = point(10, 1), point(8, 2), point(9, 3), point(7, 4)
    assert frontier([d, c, b, a], "flops") == [a, b, d]
    assert frontier([point(5, 2), point(4, 2)], "flops") == [point(4, 2)]


def test_the_command_draws_and_marks_the_best(tmp_path, capsys):
    torch.set_num_threads(1)
    corpus = write_corpus(tmp_path / "corpus")
    runs = []
    for family in ("scse", "unshared-2"):
        run(corpus, tmp_path / family, family)
        runs.append(str(tmp_path / family))
    picture = tmp_path / "pareto.svg"
    options = ["--depths", "1,2", "--budgets", "2", "--ceiling", "4", "--quiet", "--cache-dir", str(tmp_path / "cache")]
    assert main(["pareto", *runs, *options, "--out", str(picture), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["family"], row["kind"]) for row in rows] == [
        *(("scse", "fixed"),) * 2,
        ("scse", "adaptive"),
        *(("unshared-2", "fixed"),) * 2,
    ]
    assert any("FLOPs" in row["best"] for row in rows)
    assert "<svg" in picture.read_text()
    kept = read_records([tmp_path / "scse" / "records.jsonl"])
    assert [record.identity["adaptive"] for record in kept[:2]] == [None, None]
    asked = AdaptiveSettings(budgets=(2,), ceiling=4).identity(2, "online")
    assert kept[2].identity["adaptive"] == asked, "what was asked for alone"
    assert main(["pareto", *runs, *options]) == 0
    assert "Picture" not in capsys.readouterr().out
    assert len(read_records([tmp_path / "scse" / "records.jsonl"])) == 3, "the same evaluations again"
    assert main(["pareto", *runs, "--out", "picture.jpeg"]) == 2
    assert ".png or .svg" in capsys.readouterr().err


@pytest.fixture
def mine(tmp_path):
    run(write_corpus(tmp_path / "corpus"), tmp_path / "mine", "scse")
    return tmp_path / "mine"


SMALL = ["--depths", "1,2", "--budgets", "2,3", "--ceiling", "4", "--limit", "2", "--quiet"]


def test_a_missing_run_is_found_before_any_is_evaluated(mine, tmp_path, capsys):
    assert main(["pareto", str(mine), str(tmp_path / "absent"), *SMALL]) == 2
    assert f"no run in {tmp_path / 'absent'}" in capsys.readouterr().err
    assert not (mine / "records.jsonl").exists()


def test_runs_of_other_texts_or_tokenizers_are_not_put_in_one_table(mine, tmp_path, capsys):
    other = write_corpus(tmp_path / "other", words=900)
    run(other, tmp_path / "theirs", "scse", tokenizer="bpe-280")
    runs = [str(mine), str(tmp_path / "theirs")]
    assert main(["pareto", *runs, *SMALL]) == 2
    assert "perplexities of different texts cannot be compared" in capsys.readouterr().err
    assert main(["pareto", *runs, *SMALL, "--data", str(other)]) == 2
    assert "have different tokenizers" in capsys.readouterr().err
    assert not (mine / "records.jsonl").exists()


def test_a_budget_out_of_reach_is_one_cell(mine, tmp_path, monkeypatch, capsys, caplog):
    def fewer(statistics, budget):
        if budget == 3:
            raise UnreachableBudget("no threshold gives a mean of 3 loops")
        return float(np.median(statistics))

    monkeypatch.setattr("scse.evaluation.budgets.calibrate", fewer)
    picture = tmp_path / "cost.png"
    assert main(["pareto", str(mine), *SMALL, "--out", str(picture), "--json"]) == 0
    *reached, missed = json.loads(capsys.readouterr().out)
    assert [(row["kind"], row["budget"]) for row in reached] == [("fixed", None)] * 2 + [("adaptive", 2)]
    assert (missed["budget"], missed["depth"], missed["ppl"], missed["best"]) == (3, None, None, "unreachable")
    assert f"{mine}: no threshold gives a mean of 3 loops" in caplog.messages
    assert main(["pareto", str(mine), *SMALL, "--out", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "unreachable" in out
    assert out.endswith(f"Picture: {picture}\n")


def test_fixed_depths_alone(mine, monkeypatch, capsys):
    monkeypatch.setattr("scse.evaluation.pareto.ParetoEvaluation.adaptive", None)
    fixed = ["--depths", "1,2", "--budgets", "none", "--quiet"]
    assert main(["pareto", str(mine), *fixed, "--json"]) == 0
    assert [row["depth"] for row in json.loads(capsys.readouterr().out)] == [1, 2]
    assert main(["pareto", str(mine), "--depths", "none", "--budgets", "none"]) == 2
    assert "neither depths nor budgets" in capsys.readouterr().err
