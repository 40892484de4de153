"""Sweeps: a grid becomes a suite, runs like one, continues, and selects on validation."""

from __future__ import annotations

import json

import pytest

from scse import FAMILIES
from scse.cli import main
from scse.config import assemble
from scse.errors import UserError
from scse.records import identity, new_record
from scse.records.statistics import summarise
from scse.suites import SUITES
from scse.suites.evidence import Shelf, gather
from scse.suites.presets import find_preset
from scse.suites.suite import Preset, evaluation
from scse.suites.sweep import PAPER_GRIDS, Grid, as_suite, columns, paper_grid, select

TINY = {"tokenizer": "bpe-300", "width": 24, "heads": 2, "ff_width": 48, "context": 16, "batch": 4, "warmup": 2}


def line(place, *more: object, out: str = "sweep") -> list[str]:
    sets = [part for name, value in TINY.items() for part in ("--set", f"{name}={value}")]
    where = ["--data", place / "corpus", "--cache-dir", place / "cache", "--out", place / out]
    return ["sweep", *map(str, (*where, *sets, "--steps", 3, "--limit", 2, "--quiet", *more))]


def answer(capsys, arguments, code=0):
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


GRID = ("--vary", "step_scale=0.25,0.5", "--vary", "lr=1e-3,0.002", "--seeds", "0,1", "--depths", "2,4")


def test_a_sweep_over_a_problem_also_shows_right_answers(tmp_path, capsys):
    small = (
        "--set",
        "nodes=4",
        "--set",
        "hops=2",
        "--set",
        "batch=4",
        "--steps",
        "2",
        "--limit",
        "8",
        "--depths",
        "1,3",
    )
    grid = ("--protocol", "pointer-chase", "--vary", "lr=1e-3,2e-3", "--seeds", "0", "--out", str(tmp_path), "--quiet")
    done = answer(capsys, ["sweep", *small, *grid])
    assert [set(row["results"]) for row in done["rows"]] == [{"T=1", "T=3", "right, T=1", "right, T=3"}] * 2
    assert all(0 <= row["results"]["right, T=3"]["mean"] <= 100 for row in done["rows"])
    means = [row["results"]["T=3"]["mean"] for row in done["rows"]]
    assert done["best"]["mean"] == min(means), "perplexity decides"
    assert main(["sweep", *small, *grid]) == 0
    assert "right answers in %" in " ".join(capsys.readouterr().out.split())


def test_a_sweep_is_planned_run_continued_and_extended(place, capsys):
    def here(*more):
        return line(place, *more, out="grid")  # a folder that no other test has

    plan = answer(capsys, here(*GRID, "--plan"))
    assert plan["total"]["runs"] == 8
    assert [row["row"] for row in plan["members"]][:2] == ["step_scale=0.25, lr=0.001", "step_scale=0.25, lr=0.002"]
    assert not (place / "grid").exists(), "planning writes nothing"

    done = answer(capsys, here(*GRID))
    assert (done["runs"], done["done"], done["finished"], done["failures"]) == (8, 8, True, {})
    assert [row["settings"] for row in done["rows"]] == [
        {"step_scale": 0.25, "lr": 0.001},
        {"step_scale": 0.25, "lr": 0.002},
        {"step_scale": 0.5, "lr": 0.001},
        {"step_scale": 0.5, "lr": 0.002},
    ]
    means = [row["results"]["T=4"]["mean"] for row in done["rows"]]
    assert done["rows"][0]["results"]["T=2"]["seeds"] == [0, 1]
    assert done["best"]["settings"] == done["rows"][means.index(min(means))]["settings"], "at the deepest depth"
    assert (done["split"], done["best"]["depth"], done["best"]["mean"]) == ("validation", 4, min(means))

    times = {path: path.stat().st_mtime_ns for path in (place / "grid").rglob("*") if path.name != ".lock"}
    assert answer(capsys, here(*GRID)) == done
    assert {path: path.stat().st_mtime_ns for path in times} == times, "nothing was done twice"
    more = answer(capsys, here(*GRID, "--vary", "max_loops=8,4", "--seeds", "0", "--plan"))
    assert (more["total"]["runs"], more["total"]["trained"]) == (8, 4), "8 is what the runs had without a word"
    fewer = ("--vary", "step_scale=.5,0.75", "--vary", "lr=0.001", "--seeds", "0,2", "--depths", "2", "--plan")
    plan = answer(capsys, here(*fewer))
    assert (plan["total"]["runs"], plan["total"]["trained"]) == (4, 1), "spelt otherwise, it is the same value"


def test_what_is_printed_names_the_winner_and_only_on_validation(place, capsys):
    assert main(line(place, *GRID)) == 0
    printed = capsys.readouterr().out
    assert "Perplexity on validation: mean ± standard deviation (seeds)" in printed
    assert "8 of 8 runs are trained and evaluated" in printed
    assert "lowest at T = 4 on validation: step_scale=" in printed
    assert main(line(place, *GRID, "--split", "test")) == 0
    printed = capsys.readouterr().out
    assert "nothing is selected on test" in printed
    assert "lowest" not in printed


def test_families_can_be_varied_and_one_that_fails_does_not_stop_the_others(place, capsys):
    names = ("looped", "unshared-3")
    two = ("--vary", f"family={','.join(names)}", "--seeds", "0", "--depths", "2")
    found = answer(capsys, line(place, *two, out="families"))
    assert [row["settings"] for row in found["rows"]] == [{"family": name} for name in names]
    assert all(row["results"]["T=2"]["mean"] > 1 for row in found["rows"])
    wild = ("--vary", "lr=1e-3,1e30", "--set", "clip=1e30", "--seeds", "0", "--depths", "2")
    found = answer(capsys, line(place, *wild, out="wild"), code=1)
    assert (found["done"], next(iter(found["failures"].values()))[:4]) == (1, "step")
    assert found["best"]["settings"] == {"lr": 0.001}
    assert (found["best"]["complete"], found["best"]["of"]) == (1, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vary", "step_scal=0.25"], "did you mean 'step_scale'?"),
        (["--vary", "lr"], "--vary takes name=value,value, got 'lr'"),
        (["--vary", "lr=1,,2"], "--vary takes name=value,value"),
        (["--vary", "lr=1", "--vary", "lr=2"], "--vary names 'lr' twice"),
        (["--vary", "lr=x"], "option 'lr' must be a finite number"),
        (["--vary", "objective=last,last+short:2"], "'short' takes no number"),
        (["--vary", "objective=last,last+0.1*ponder"], "'ponder' needs halting probabilities"),
        (["--vary", "steps=3,4"], "'steps' is both varied and set to one value"),
        (["--vary", "width=24,32"], "'width' is both varied and set to one value"),
        (["--vary", "seed=0,1"], "give --seeds"),
        (["--set", "seed=1"], "give them with --seeds"),
        (["--select", "5"], "--select 5 is not among the depths 8, 24, 48"),
        (["--budgets", "49"], "above the ceiling of 48"),
        (["--paper", "stepscale"], "did you mean 'step-scale'?"),
        (["--paper", "step-scale", "--vary", "lr=1"], "--paper decides on --vary"),
        (["--preset", "mini"], "without --paper use --protocol"),
        (["--protocol", "mini2"], "did you mean 'mini'?"),
    ],
)
def test_mistakes_are_one_line(place, capsys, arguments, message):
    assert main(line(place, *arguments, out="mistakes")) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (place / "mistakes").exists()


@pytest.mark.parametrize("name", PAPER_GRIDS)
def test_the_papers_selections_are_runs_of_its_protocol(name):
    grid = paper_grid(name, {})
    assert grid.protocol == "wikitext-103"
    ((option, values),) = grid.vary.items()
    assert FAMILIES.find(grid.family).options[option] in values, "what the families have by default was tried"
    assert grid.chosen in (None, FAMILIES.find(grid.family).options[option])
    for preset in (find_preset("paper"), find_preset("mini")):
        suite, own = as_suite(grid, preset, columns([8, 48], [], "validation"))
        assert [own[arm.name][option] for arm in suite.arms] == list(values)
        assert {arm.seeds for arm in suite.arms} == {(0, 1, 2)}
    assert preset.settings(suite.arms[0])["steps"] == 400


def test_the_papers_selection_from_the_command(place, capsys):
    tiny = [part for name, value in TINY.items() for part in ("--set", f"{name}={value}")]
    where = ["--data", place / "corpus", "--cache-dir", place / "cache", "--out", place / "paper"]
    how = ["--steps", 2, "--limit", 1, "--seeds", 0, "--depths", "2,3", "--quiet"]
    assert main(["sweep", "--paper", "step-signal", *map(str, (*where, *tiny, *how))]) == 0
    printed = capsys.readouterr().out
    assert "lowest at T = 3 on validation: step_signal=" in printed
    assert "the paper took 0.015 (22M on WikiText-103)" in printed


PRESET = Preset("sweep", limit=2)
SUITE, VALUES = as_suite(
    Grid("scse", "mini", {"step_scale": ("0.25", "0.5", "1.0")}), PRESET, columns([8], [], "validation"), [0, 1]
)


def evidence(numbers: dict[str, list[float]]):
    records = []
    for arm in SUITE.arms:
        for seed, value in enumerate(numbers.get(arm.name, [])):
            config = assemble(arm.family, {**PRESET.settings(arm), "precision": "float32", "seed": seed})
            about = evaluation(PRESET, arm, SUITE.columns[0])
            records.append(new_record(identity(config, config.steps, **about), {"ppl": value}, "hash"))
    return gather(SUITE, Shelf(records, PRESET))


def test_the_lowest_mean_of_whole_rows_is_selected():
    low, middle, high = (arm.name for arm in SUITE.arms)
    choice = select(evidence({low: [9.0, 8.0], middle: [7.0, 8.0], high: [1.0]}), "T=8")
    assert (choice.arm, choice.runner_up[0], choice.complete, choice.arms) == (middle, low, 2, 3)
    assert choice.mean == summarise({0: 7.0, 1: 8.0})
    broken = select(evidence({low: [9.0, 8.0], middle: [1.0, float("inf")]}), "T=8")
    assert (broken.arm, broken.runner_up) == (low, None)
    assert select(evidence({high: [1.0]}), "T=8") is None


def test_a_value_that_is_the_default_is_the_run_of_the_suites():
    mini = find_preset("mini")
    suite, _ = as_suite(paper_grid("step-scale", {}), mini, columns([8], [], "validation"))
    folders = {arm.name: mini.folder(arm) for arm in suite.arms}
    assert folders["step_scale=0.35"] == mini.folder(SUITES.find("step_film").arm("tuned-adapter"))
    assert len(set(folders.values())) == 5


def test_depths_keep_the_numbers_that_they_were_given_with():
    suite, _ = as_suite(Grid("scse", "mini", {"depths": ("poisson:4", "poisson:8", "uniform:8")}), PRESET, ())
    runs = [assemble("scse", PRESET.settings(arm)) for arm in suite.arms]
    assert [(run.sampler.sampler.name, run.max_loops) for run in runs] == [
        ("poisson", 4),
        ("poisson", 8),
        ("uniform", 8),
    ]
    (arm,) = as_suite(Grid("scse", "mini", {}, {"depths": "log-uniform:32"}), PRESET, ())[0].arms
    assert assemble("scse", PRESET.settings(arm)).max_loops == 32


def test_a_split_may_be_called_as_in_other_commands(place, capsys):
    grid = line(place, "--vary", "lr=1e-3", "--seeds", "0", "--depths", "2", "--split", "valid", out="aliased")
    done = answer(capsys, grid)
    assert done["rows"][0]["results"]["T=2"]["mean"] > 1
    (path,) = (place / "aliased").glob("*/seed0/records.jsonl")
    before = path.read_bytes()
    assert answer(capsys, grid)["rows"] == done["rows"]
    assert path.read_bytes() == before, "what was evaluated is found again"


def test_equal_values_are_one_arm_and_no_variation_is_one_run():
    suite, _ = as_suite(Grid("scse", "mini", {"lr": ("1e-3", "0.001")}), PRESET, columns([8], [], "test"))
    assert [arm.name for arm in suite.arms] == ["lr=0.001"]
    suite, values = as_suite(Grid("looped", "mini", {}), PRESET, columns([8], [4], "test"))
    assert (values, [c.header for c in suite.columns]) == ({"looped": {}}, ["T=8", "Adaptive 4"])
    with pytest.raises(UserError, match="unknown option 'anchor' of a run of 'looped'"):
        as_suite(Grid("looped", "mini", {"anchor": ("learned",)}), PRESET, columns([8], [], "test"))
