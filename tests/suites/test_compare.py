"""Any runs beside each other: grouped by what differs, never different tokens in one column, what is missing named."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runs import run, write_corpus
from scse.cli import main
from scse.cli.compare import left_aside
from scse.config import Parent, assemble
from scse.records import append_records, identity, new_record
from scse.records.comparison import compare, evaluation_of

RESULTS = Path(__file__).parents[2] / "results"


def record(seed=0, depth=8, ppl=20.0, tokens="abc", family="scse", where=None, parent=None, trained=None, **settings):
    config = assemble(family, {"steps": 5, "seed": seed, **settings})
    config = replace(config, parent=parent)
    about = {"dataset": "stdlib", "split": "test", "limit": 4, **(where or {})}
    return new_record(identity(config, trained or 5, depth=depth, **about), {"ppl": ppl, "nll": 3.0}, tokens)


def cells(found):
    """{(values of what differs), header: numbers by seed}"""
    headers = found.headers()
    return {
        (*(row.settings.get(name) for name in found.differing), headers[column]): dict(row.values[column])
        for row in found.rows
        for column in found.columns
    }


def test_rows_differ_in_what_differs_and_seeds_belong_together():
    records = [record(seed, step_scale=s, lr=1e-3, ppl=10 * s + seed) for seed in (0, 1, 2) for s in (0.25, 0.5)]
    found = compare(records, "ppl")
    assert found.differing == ["step_scale"]
    assert (found.shared["family"], found.shared["lr"]) == ("scse", 1e-3)
    assert cells(found) == {(0.25, "T=8"): {0: 2.5, 1: 3.5, 2: 4.5}, (0.5, "T=8"): {0: 5.0, 1: 6.0, 2: 7.0}}
    summary = found.rows[0].summary(found.columns[0])
    assert (summary.mean, summary.sd, summary.seeds) == (3.5, 1.0, (0, 1, 2))


def test_an_option_that_only_some_have_tells_them_apart():
    found = compare([record(), record(family="looped")], "ppl")
    assert found.differing[0] == "family"
    assert {"source_gain", "anchor"} <= set(found.differing)


def test_unfinished_runs_and_runs_from_a_parent_are_rows_of_their_own():
    parent = Parent("f" * 64, 0, 5, 5, "0" * 64)
    found = compare([record(), record(trained=3), record(parent=parent), record(1, parent=parent)], "ppl")
    assert found.differing == ["trained_steps", "parent"]
    rows = [[row.settings.get(name) for name in found.differing] for row in found.rows]
    assert rows == [[3, None], [None, None], [None, "ffffff@5"], [None, "ffffff@5 seed 0"]]


def test_columns_are_evaluations_and_say_what_they_do_not_share():
    texts = [record(), record(depth=16), record(where={"split": "validation"}), record(where={"limit": None})]
    adaptive = {"rule": "update", "ceiling": 48, "calibrated_on": "validation", "budget": 8, "mode": "offline"}
    texts += [record(depth=None, where={"adaptive": adaptive}), record(where={"task": "completion", "tag": "try"})]
    found = compare(texts, "ppl")
    assert sorted(found.headers().values()) == sorted(
        [
            "T=8 perplexity test first 4",
            "T=16 perplexity test first 4",
            "T=8 perplexity validation first 4",
            "T=8 perplexity test whole",
            "adaptive 8 offline ceiling=48 perplexity test first 4",
            "T=8 completion test first 4 try",
        ]
    )
    assert list(compare(texts, "ppl", task="completion").headers().values()) == ["T=8 try"]


def test_adaptive_numbers_stand_beside_the_depth_they_took(tmp_path, capsys):
    how = {"rule": "update", "ceiling": 48, "calibrated_on": "validation", "budget": 8, "mode": "offline"}
    records = [record(seed, depth=None, where={"adaptive": how}, lr=lr) for seed in (0, 1) for lr in (1e-3, 1e-2)]
    records = [
        replace(one, metrics={**one.metrics, "mean_depth": depth})
        for one, depth in zip(records, (8.0, 9.5, 8.4, 9.7), strict=True)
    ]
    append_records(tmp_path / "records.jsonl", records)
    assert main(["compare", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "20.00 ± 0.00 (2), 8.2 loops" in printed
    assert "20.00 ± 0.00 (2), 9.6 loops" in printed
    assert "not at the same compute, mean depths differ by more than 10 %: adaptive 8 offline" in printed
    assert main(["compare", str(tmp_path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["results"][0]["mean_depth"] for row in rows] == [8.2, 9.6]
    closer = [
        replace(one, metrics={**one.metrics, "mean_depth": 8.0 + 0.3 * place}) for place, one in enumerate(records)
    ]
    assert compare(closer, "ppl").at_other_depths() == []
    records += [record(depth=None, where={"adaptive": {**how, "budget": budget}}) for budget in (24, 16)]
    assert [c.adaptive.split()[1] for c in compare(records, "ppl").columns] == ["8", "16", "24"]


def test_settings_that_follow_from_others_are_spared():
    found = compare([record(), record(family="looped"), record(lr=0.5)], "ppl")
    assert found.telling() == ["family", "lr"]
    assert len(found.differing) > 2


def test_other_tokens_never_share_a_column():
    """Another tokenizer, or other text under the same name, as the embedded corpus of another Python."""
    for other in (record(1, tokens="def", tokenizer="bpe-8192"), record(1, tokens="def")):
        found = compare([record(tokens="abc"), other], "ppl")
        assert found.tokens_differ()
        assert len(found.columns) == 2
        assert all(len(numbers) <= 1 for numbers in cells(found).values())
    assert [header[:4] for header in found.headers().values()] == ["T=8 ", "T=8 "]
    assert not compare([record(tokens="abc"), record(1, tokens="abc")], "ppl").tokens_differ()


def test_what_is_missing_is_said():
    records = [record(0), record(1), record(0, depth=16), record(0, lr=1e-2, depth=16)]
    found = compare(records, "ppl")
    eight, sixteen = found.columns
    plain, fast = found.rows
    assert (plain.missing(eight), plain.missing(sixteen), fast.missing(eight)) == ([], [1], [0])
    assert fast.summary(eight) is None


def test_what_was_measured_by_other_metrics_is_set_aside():
    other = record(1, lr=1e-2)
    other = replace(other, metrics={"accuracy": 0.5})
    found = compare([record(0), other], "ppl")
    assert [row.values != {} for row in found.rows] == [True]
    (aside,) = found.aside
    assert (aside.seeds, aside.metrics) == ({1}, {"accuracy"})
    assert "lr" not in found.differing, "what is not shown tells nothing apart"
    said = "not here: 1 run without ppl; what was measured of them: accuracy (--metric)"
    assert left_aside(found, "ppl") == said
    assert not compare([record(0), other], "accuracy").rows[0].missing(evaluation_of(other))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two runs, one of them evaluated, under one folder."""
    folder = tmp_path_factory.mktemp("compared")
    corpus = write_corpus(folder / "corpus", words=1200)
    for name, seed, lr in (("a", 0, 3e-3), ("b", 0, 1e-3), ("c", 1, 3e-3)):
        run(corpus, folder / "runs" / name, seed=seed, lr=lr, steps=3)
    evaluate = ["eval", str(folder / "runs" / "a"), "--depths", "2,4", "--quiet", "--cache-dir", str(folder / "cache")]
    assert main(evaluate) == 0
    return folder / "runs"


def test_the_command_on_real_runs_shows_those_without_an_evaluation(trained, capsys):
    capsys.readouterr()
    assert main(["compare", str(trained), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["settings"] for row in found["rows"]] == [{"lr": 1e-3}, {"lr": 3e-3}]
    missing, there = (row["results"][0] for row in found["rows"])
    assert (missing["mean"], missing["missing"]) == (None, [0])
    assert there["mean"] > 1
    assert (there["sd"], there["seeds"], there["missing"]) == (None, [0], [1])

    assert main(["compare", str(trained / "a"), str(trained / "b")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("ppl on corpus test: mean ± standard deviation (seeds)")
    assert "missing" in printed
    assert printed.endswith("all runs: family scse, corpus corpus, tokenizer bpe-300, steps 3, max_loops 3")
    (trained / "d").mkdir()
    (trained / "d" / "config.json").write_text('{"train": 3}')
    assert main(["compare", str(trained)]) == 0, "a damaged one is told and left out"


def test_records_that_were_kept_can_be_compared_without_torch():
    arguments = ["compare", str(RESULTS / "mini-wikitext-2" / "records.jsonl"), "--task", "perplexity", "--json"]
    probe = f"import sys, scse.cli; code = scse.cli.main({arguments!r}); sys.exit(code or 'torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert len(found["rows"]) == 17
    assert {len(cell["seeds"]) for row in found["rows"] for cell in row["results"]} == {3}


def test_an_evaluation_in_two_files_counts_once_and_is_told(tmp_path, capsys):
    for name, ppl in (("a", 20.0), ("b", 30.0)):
        append_records(tmp_path / name / "records.jsonl", [record(ppl=ppl)])
    assert main(["compare", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "30.00 (1)" in printed
    assert "some evaluations are in more than one file" in printed


def test_mistakes_are_one_line(tmp_path, capsys):
    append_records(tmp_path / "records.jsonl", [record()])
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        ([tmp_path, "--metric", "pppl"], "unknown metric 'pppl'; did you mean 'ppl'?"),
        ([tmp_path, "--task", "perplexty"], "did you mean 'perplexity'?"),
        ([tmp_path / "empty"], "there are no records in"),
        ([tmp_path / "nowhere"], "there is nothing at"),
        ([], "the following arguments are required: RUNS"),
    ):
        assert main(["compare", *map(str, arguments)]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1
