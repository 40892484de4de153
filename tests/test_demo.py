"""The demo end to end at a toy size, through the command."""

from __future__ import annotations

import json

import pytest

from scse.accounting import count_parameters
from scse.cli import main
from scse.cli.demo import budgeted
from scse.config import assemble
from scse.demo import DEPTHS, NAMES, Size, anchor_findings, budget_findings, findings
from scse.demo_chase import CEILING, CHASE, FULL_DEPTH, HOPS, LOOPS, UNSHARED
from scse.demo_chase import findings as chase_findings


def test_demo_trains_evaluates_diagnoses_writes_and_reports(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("scse.tasks.adaptive.CALIBRATION_WINDOWS", 4)
    places = {"out": "demo", "report": "report", "cache-dir": "cache"}
    folders = [part for name, folder in places.items() for part in (f"--{name}", str(tmp_path / folder))]
    sizes = ["--chase-steps", "2", "--steps", "2", "--windows", "4", "--processes", "1"]
    arguments = ["demo", *sizes, "--quiet", *folders]
    assert main([*arguments, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert {(row["family"], row["hops"]) for row in first["accuracy"]} == {
        (arm.family, hops) for arm in CHASE.arms for hops in (1, 2, 3, 4, 5, "all", "solved")
    }
    assert all(0 <= row[f"T={t}"] <= 1 for row in first["accuracy"] for t in LOOPS)
    assert all(1 <= row["1 hop"] <= CEILING for row in first["exits"])
    assert "equal parameters" in first["chase_findings"][-1]
    assert [row["family"] for row in first["perplexity"]] == list(NAMES)
    assert all(set(row) == {"family", *(f"T={t}" for t in DEPTHS)} for row in first["perplexity"])
    assert all(1 < row["T=48"] < 10_000 for row in first["perplexity"])
    # Four windows of an untrained model reach few mean budgets: those that are reached are numbers, the rest is told.
    for row in first["adaptive"]:
        cells = [row[f"Adaptive {budget}"] for budget in (8, 16, 24)]
        reached = [cell["ppl"] for cell in cells]
        assert all((cell["ppl"] is None) == (cell["mean_depth"] is None) for cell in cells)
        assert all(number is None or number > 1 for number in reached)
        told = any(s.startswith(f"{row['family']}: adaptive") and "no threshold" in s for s in first["findings"])
        assert told == (None in reached)
    ratios = {row["family"]: (row["R_0"], row["R_47"]) for row in first["anchor"]}
    assert ratios["looped"][0] == 1
    assert ratios["scse"] == (0, 0)
    assert set(first["texts"]) == {"1", "8", "48"}
    page = (tmp_path / "report" / "index.html").read_text()
    assert "<svg" in page
    for file in ("lens-chase.html", "lens-text.html"):
        assert f'href="{file}"' in page
        assert "lens-data" in (tmp_path / "report" / file).read_text()
    assert (tmp_path / "report" / "figures" / "demo-depth-response.png").stat().st_size > 10_000
    assert 'href="figures/chase-exit-depths.svg"' in page
    assert "<svg" in (tmp_path / "report" / "figures" / "chase-exit-depths.svg").read_text()

    metrics = next((tmp_path / "demo").glob("scse-*/seed0/metrics.jsonl"))
    before = metrics.read_text()
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "Share of right answers by hops" in text
    assert "Test perplexity over loop depth" in text
    assert "T = 48\n  │ def main(" in text
    assert metrics.read_text() == before, "a second run trains nothing"
    assert (tmp_path / "report" / "index.html").read_text() == page, "and shows the same"


def test_the_unshared_model_of_the_chase_has_no_more_parameters_than_the_loops():
    preset = Size(2, 2, 4).preset()
    counts = {arm.name: count_parameters(assemble(arm.family, preset.settings(arm)).model).active for arm in CHASE.arms}
    assert 0.95 * counts["looped"] < counts["narrow"] <= counts["looped"] * 1.01


def test_chase_findings_say_what_the_numbers_say():
    def row(family, hops, few, enough):
        return {"family": family, "hops": hops, "T=1": few, f"T={FULL_DEPTH}": enough}

    rows = [row("scse", HOPS, 0.01, 0.98), row(UNSHARED, HOPS, 0.1, 0.4)]
    rows += [row("scse", "all", 0.4, 0.99), row(UNSHARED, "all", 0.4, 0.5)]
    rows += [row("scse", "solved", 0.0, 0.9), row(UNSHARED, "solved", 0.0, 0.2)]
    assert chase_findings(rows) == [
        "scse: 5 hops away, 1% right after 1 loop, 98% after 7",
        "unshared-7: 5 hops away, 10% right after 1 loop, 40% after 7",
        "all answers at T = 7: scse 99.0%, unshared-7 of equal parameters 50.0%, 49 points behind",
        "examples with every answer right at T = 7: scse 90.0%, unshared-7 of equal parameters 20.0%, 70 points behind",
    ]


def interrupted(*_):
    raise KeyboardInterrupt


def broken(*_):
    raise ZeroDivisionError("division by zero")


@pytest.fixture
def arguments(tmp_path):
    return [
        "demo",
        "--quiet",
        "--processes",
        "1",
        "--out",
        str(tmp_path / "demo"),
        "--report",
        str(tmp_path / "report"),
    ]


def test_a_demo_that_is_stopped_half_way_says_how_to_go_on(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("scse.suites.member.train", interrupted)
    assert main(arguments) == 0
    assert capsys.readouterr().out == "stopped and saved; the same command continues\n"
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"stopped": True}
    assert not (tmp_path / "report").exists()


def test_a_demo_whose_runs_fail_shows_no_page(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("scse.suites.member.train", broken)
    assert main(arguments) == 1
    assert capsys.readouterr().err.endswith("failed: ZeroDivisionError: division by zero\n")
    assert not (tmp_path / "report").exists()


def test_findings_say_what_the_numbers_say():
    rows = [
        {"family": "looped", "T=1": 12.0, "T=8": 10.0, "T=48": 11.0},
        {"family": "scse", "T=1": 9.0, "T=8": 9.5, "T=48": 18.0},
    ]
    assert findings(rows) == [
        "looped: best at T = 8 (as in the paper), +10.0% from there to T = 48",
        "scse: best at T = 1 (in the paper at T = 8), +100.0% from there to T = 48",
        "scse is not lowest at T = 48; in the paper it is lowest at every depth",
    ]
    rows[1]["T=48"] = 10.5
    assert findings(rows)[-1] == "scse is lowest at every depth, as in the paper"
    anchor = [
        {"family": "looped", "R_47": 2.0},
        {"family": "tuned-adapter", "R_47": 1.0},
        {"family": "scse", "R_47": 0},
    ]
    (sentence,) = anchor_findings(anchor)
    assert "looped 2.00 (paper 4.35), tuned-adapter 1.00 (paper 1.62), scse 0.00 (paper 0.00)" in sentence


def test_budgets_that_families_keep_differently_are_told():
    def row(family, *depths):
        return {"family": family} | {
            f"Adaptive {b}": {"ppl": depth and 9.0, "mean_depth": depth}
            for b, depth in zip((8, 16), depths, strict=True)
        }

    assert budget_findings([row("looped", 12.9, 16.2), row("scse", 5.6, 15.1), row("other", None, None)]) == [
        "Adaptive 8: mean depths of 5.6 to 12.9 loops were realised, so the families are not ranked there"
    ]
    assert budgeted(row("scse", 5.62, None)) == {"family": "scse", "Adaptive 8": "9.00 at 5.6", "Adaptive 16": None}


def test_nothing_is_said_about_an_anchor_that_was_not_measured():
    assert anchor_findings([{"family": "looped", "R_47": 2.0}, {"family": "scse", "R_47": None}]) == []
