"""The suites as they are declared: well formed, true to the paper's protocol, and exact about what fits them."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scse.config import assemble, protocol, trained_as
from scse.errors import UserError
from scse.records import identity, new_record
from scse.report.claims import TIMED
from scse.report.page import mixed_precisions
from scse.suites import SUITES
from scse.suites.evidence import Shelf, gather
from scse.suites.needed import members, narrow
from scse.suites.paper.tables import change
from scse.suites.presets import find_preset, options
from scse.suites.suite import Column, Preset, Value, evaluation, fits, values_of
from scse.tasks import TASKS

PAPER, MINI = find_preset("paper"), find_preset("mini", "wikitext-2-v1")
ARMS = {(suite.label, arm.name): arm for suite in SUITES for arm in suite.arms}


def test_every_table_and_figure_is_there_and_needs_no_torch():
    assert len([suite for suite in SUITES if suite.label]) == 25
    probe = "import sys, scse.suites, scse.suites.presets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0


def test_every_suite_is_in_the_documentation():
    page = (Path(__file__).parents[2] / "docs" / "reproducing.md").read_text(encoding="utf-8")
    assert [name for name in SUITES.names() if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize("name", SUITES.names())
def test_a_suite_is_well_formed(name):
    suite = SUITES.find(name)
    arms, headers = [arm.name for arm in suite.arms], [column.header for column in suite.columns]
    assert len(set(arms)) == len(arms)
    assert len(set(headers)) == len(headers)
    assert {column.task for column in suite.columns} <= set(TASKS.names())
    for arm, header in suite.paper:
        assert arm in arms
        assert header in headers
    assert suite.claims
    for claim in suite.claims:
        assert {*claim.lefts, *claim.right} <= set(arms), claim.text
        assert {*claim.columns, *claim.against} <= set(headers), claim.text
        assert claim.comparisons()
        assert claim.margin is None or claim.within is None
        assert not claim.within or f"{claim.within:g}" in claim.text, "the margin is stated"
        for left, right in claim.comparisons():
            assert left != right, claim.text
    for left, right in suite.printed:
        assert {left[0], right[0]} <= set(arms)
        assert {left[1], right[1]} <= set(headers)


def test_claims_about_one_model_are_those_of_rows_with_one_seed():
    for suite in SUITES:
        for claim in suite.claims:
            seeds = {len(suite.arm(name).seeds) for name in (*claim.lefts, *claim.right)}
            assert claim.of_models == (seeds == {1}), (suite.name, claim.text)


@pytest.mark.parametrize("name", SUITES.names())
def test_the_papers_own_values_bear_out_its_claims(name):
    found = gather(SUITES.find(name), Shelf([], PAPER))
    for claim in found.suite.claims:
        for left, right in claim.comparisons():
            first = found.cells[left].paper
            second = found.cells[right].paper if isinstance(right, tuple) else Value(right)
            if first is None or second is None:
                continue
            doubt = TIMED * max(first.mean, second.mean) if found.cells[left].column.timed else 0.0
            slack = claim.slack(second.mean)
            if slack is not None:
                assert abs(first.mean - second.mean) + doubt <= slack, claim.text
            else:
                assert abs(first.mean - second.mean) > doubt, claim.text
                assert (first.mean < second.mean) == claim.lower, (claim.text, left, right)


def test_a_change_over_depth_is_printed_or_the_difference_of_what_is():
    found = gather(SUITES.find("long10k_95m"), Shelf([], PAPER))
    assert found.cells["scse", "T=4 → 8"].paper == Value(-0.8)
    assert found.cells["scse-5k", "T=4 → 8"].paper.mean == pytest.approx(96.9 - 97.3)
    assert found.cells["step-adapter-5k", "T=4 → 8"].paper is None


def test_a_change_over_depth_is_of_one_seed_and_needs_both_depths():
    column = change(4, 8)
    numbers = {(0, 4): 10.0, (0, 8): 9.0, (1, 4): 12.0, (1, 8): 10.5, (2, 8): 3.0}
    records = [
        record(seed=seed, column=Column("", depth=depth), metrics={"ppl": value})
        for (seed, depth), value in numbers.items()
    ]
    assert values_of(records, MINI, ARM, column) == {0: -1.0, 1: -1.5}
    suite = replace(SUITES.find("ablations"), columns=(column,), claims=())
    assert gather(suite, Shelf(records, MINI)).cells["scse", column.header].values == {0: -1.0, 1: -1.5}
    (member, *_) = members([suite], MINI, Path("runs"))
    assert sorted(c.depth for c in member.columns) == [4, 8]
    assert narrow([SUITES.find("long10k_95m")], None, [4])[0].columns == (SUITES.find("long10k_95m").column("T=4"),)


def test_diagnostics_are_of_three_seeds_where_perplexities_are_of_five():
    suite = SUITES.find("add-causal-forcing")
    found = {m.seed: {c.task for c in m.columns} for m in members([suite], MINI, Path("runs")) if m.arm.name == "scse"}
    assert found == {s: {"perplexity", "diagnose"} if s < 3 else {"perplexity"} for s in range(5)}
    cell = gather(suite, Shelf([], MINI)).cells["scse", "R_47"]
    assert (cell.missing, cell.arm.seeds) == ((0, 1, 2), (0, 1, 2, 3, 4))


def test_the_profile_takes_as_many_sequences_as_the_papers_numbers_imply():
    suite = SUITES.find("scale_profile")
    latency, throughput = "T=48 latency (ms)", "T=48 throughput (10³ tokens/s)"
    for arm in suite.arms:
        tokens = suite.paper[arm.name, latency].mean * suite.paper[arm.name, throughput].mean
        assert tokens == pytest.approx(arm.sequences * 128, rel=0.01)
        asked = evaluation(PAPER, arm, suite.column(latency))
        assert asked["dataset"] == f"random {16 if arm.group == '50M' else 8} × 128"


def test_a_row_of_earlier_runs_is_shown_where_there_are_records_and_never_asked_for():
    suite, name = SUITES.find("add-causal-forcing"), "sc-cond-subtractive-masked"
    assert name not in {member.arm.name for member in members([suite], MINI, Path("runs"))}
    assert name not in [arm.name for arm in gather(suite, Shelf([], MINI)).suite.arms]
    old = record(arm=suite.arm(name))
    found = gather(suite, Shelf([old], MINI))
    assert found.cells[name, "T=8"].values == {1: 7.0}
    assert found.cells[name, "T=8"].missing == ()
    assert found.cells["sc-cond-subtractive", "T=8"].values == {}, "with a mask it is another model"
    with pytest.raises(UserError, match="unknown arm"):
        narrow([suite], [name], None)


def test_a_misspelt_suite_gets_a_suggestion():
    with pytest.raises(UserError, match="unknown suite 'ablation'; did you mean 'ablations'"):
        SUITES.find("ablation")
    with pytest.raises(UserError, match="unknown preset 'papper'; did you mean 'paper'"):
        find_preset("papper")


@pytest.mark.parametrize("preset", [PAPER, MINI], ids=lambda preset: preset.name)
def test_every_arm_is_a_run_and_is_recognised_as_itself(preset):
    for arm in ARMS.values():
        for seed in arm.seeds:
            config = assemble(arm.family, {"precision": "auto", **preset.settings(arm), "seed": seed})
            who = identity(replace(config, precision="float32"), config.steps, dataset="x", split="test", depth=8)
            assert trained_as(who, arm.family, preset.settings(arm)), (arm.name, seed)


def test_the_seeds_are_the_papers():
    def seeds(suite, *arms):
        return [len(ARMS[suite, arm].seeds) for arm in arms]

    assert seeds("stepcond_wt103", "tuned-adapter-22m", "step-adapter-22m", "scse-22m") == [5, 5, 5]
    assert seeds("stepcond_wt103", "looped-50m", "step-adapter-50m", "scse-50m") == [3, 5, 5]
    assert seeds("stepcond_wt103", "looped-96m", "tuned-adapter-96m", "step-adapter-96m", "scse-96m") == [3, 3, 5, 5]
    assert seeds("long10k_95m", "step-adapter", "scse") == [5, 5]
    assert seeds("contexts", "looped-1024", "tuned-adapter-1024", "scse-1024", "scse-512") == [5, 3, 5, 3]
    assert seeds("c4_train", "looped", "tuned-adapter", "scse", "unshared-8") == [3, 5, 5, 3]
    assert seeds("lambada", "scse-22m", "scse-50m", "step-adapter-96m", "scse-96m") == [3, 3, 5, 5]
    assert seeds("secondary_condleak", "leak-22m", "leak-96m") == [5, 5]
    assert {len(arm.seeds) for (suite, _), arm in ARMS.items() if suite in ("ablations", "owt_train")} == {3}
    assert {len(arm.seeds) for (suite, _), arm in ARMS.items() if suite == "heldout_transfer"} == {3}
    assert {arm.seeds for (suite, _), arm in ARMS.items() if suite in ("scale_profile", "zdfb-empirical")} == {(0,)}
    fixed = {arm.protocol for arm in ARMS.values() if arm.settings.get("data_seed") == 0}
    assert fixed == {"wikitext-103-96m", "wikitext-103-96m-10k"}


def test_mini_runs_are_plain_mini_runs_that_suites_share():
    plain = {**protocol("mini"), "data": "wikitext-2-v1"}
    for (suite, _), arm in ARMS.items():
        if arm.protocol in ("wikitext-2", "wikitext-103") and not arm.mini and not arm.kept:
            assert MINI.settings(arm) == plain, suite
    narrow = MINI.settings(ARMS["ablations", "unshared-4"])
    assert narrow == {**plain, "width": 88, "ff_width": 352}
    folders = {MINI.folder(ARMS[s, "scse"]) for s in ("ablations", "add-anchor-design", "add-causal-forcing")}
    assert len(folders) == 1
    assert PAPER.folder(ARMS["ablations", "scse"]) != PAPER.folder(ARMS["add-anchor-design", "scse"])


def test_miniatures_keep_what_is_compared():
    def config(suite, arm, preset=MINI):
        return assemble(ARMS[suite, arm].family, preset.settings(ARMS[suite, arm]))

    widths = [config("stepcond_wt103", f"scse-{size}").model.shape.width for size in ("22m", "50m", "96m")]
    assert widths == sorted(set(widths))
    for preset in (MINI, PAPER):
        tokens = {config("contexts", f"scse-{context}", preset).tokens_per_step for context in ("512", "1024")}
        assert tokens == {config("strong_followup", "scse", preset).tokens_per_step}
    assert config("long10k_95m", "scse").steps == 2 * config("scale95m", "scse").steps
    assert config("add-c4-long50k", "scse").steps > config("add-scale-real-corpus", "scse").steps


ARM = ARMS["ablations", "scse"]
COLUMN = Column("T=8", depth=8)


def record(preset=MINI, arm=ARM, column=COLUMN, trained_steps=None, metrics=None, where=None, **changes):
    """The record that an evaluation for a cell would leave, changed in some way."""
    settings = {"precision": "float32", "seed": 1, **preset.settings(arm), **changes}
    config = assemble(arm.family, settings)
    about = {**evaluation(preset, arm, column), **(where or {})}
    return new_record(identity(config, trained_steps or config.steps, **about), metrics or {"ppl": 7.0}, "hash")


def test_the_record_of_a_cell_fits_it():
    assert fits(record(), MINI, ARM, COLUMN)
    assert fits(record(precision="bfloat16"), MINI, ARM, COLUMN), "what 'auto' is depends on the machine"
    assert values_of([record()], MINI, ARM, replace(COLUMN, unit=1e-3)) == {1: 0.007}


@pytest.mark.parametrize(
    "changes",
    [
        {"lr": 3e-4},
        {"batch": 8},
        {"micro_batches": 2},
        {"warmup": 51},
        {"weight_decay": 0.2},
        {"max_loops": 4},
        {"steps": 401},
        {"trained_steps": 200},
        {"width": 256},
        {"dropout": 0.0},
        {"tokenizer": "bpe-8192"},
        {"step_scale": 0.4},
        {"mask": False},
        {"anchor": "embedding"},
        {"data": "wikitext-2"},
        {"data_seed": 7},
        {"metrics": {"nll": 1.0}},
        {"where": {"split": "validation"}},
        {"where": {"limit": None}},
        {"where": {"depth": 16}},
        {"where": {"dataset": "stdlib"}},
        {"where": {"tag": "try"}},
        {"where": {"task": "diagnose"}},
        {"where": {"adaptive": {"budget": 8}}},
        {"where": {"settings": {"precision": "int8"}}},
        {"arm": ARMS["ablations", "looped"]},
    ],
    ids=str,
)
def test_a_record_that_differs_in_anything_does_not_fit(changes):
    assert not fits(record(**changes), MINI, ARM, COLUMN)


def test_of_two_precisions_a_cell_shows_one_whatever_the_order_and_the_page_says_so():
    exact, rounded = (record(precision=kind, metrics={"ppl": x}) for kind, x in (("float32", 7.0), ("bfloat16", 8.0)))
    alone = record(precision="bfloat16", metrics={"ppl": 9.0}, seed=2)
    suite = next(suite for suite in SUITES if ARM in suite.arms)
    told = set()
    for records in ([exact, rounded, alone], [alone, rounded, exact]):
        shelf = Shelf(records, MINI)
        assert shelf.values(ARM, COLUMN) == {1: 7.0, 2: 9.0}
        assert shelf.precisions(ARM, COLUMN) == {1: "float32", 2: "bfloat16"}
        (remark,) = mixed_precisions(gather(suite, shelf))
        told.add(remark)
    assert told == {
        "The runs were not all trained in one precision. "
        f"In bfloat16: {ARM.label} (seeds 2). In float32: {ARM.label} (seeds 1)."
    }
    assert mixed_precisions(gather(suite, Shelf([exact], MINI))) == []


def test_a_fixed_data_order_is_not_one_that_follows_the_seed():
    arm = ARMS["scale95m", "scse"]
    assert fits(record(arm=arm, seed=0), MINI, arm, COLUMN)
    assert fits(record(arm=arm, seed=1), MINI, arm, COLUMN)
    assert not fits(record(arm=arm, seed=1, data_seed=1), MINI, arm, COLUMN)


@pytest.mark.parametrize("other", [{"mode": "online"}, {"rule": "kl"}, {"ceiling": 24}, {"budget": 16}], ids=str)
def test_an_adaptive_column_takes_the_papers_accounting_alone(other):
    column = Column("Adaptive 8", "adaptive", budget=8)
    same = record(column=column)
    assert fits(same, MINI, ARM, column)
    assert not fits(same, MINI, ARM, replace(column, task="perplexity"))
    assert not fits(same, MINI, ARM, COLUMN)
    how = {**same.identity["adaptive"], **other}
    assert not fits(record(column=column, where={"adaptive": how}), MINI, ARM, column)


def test_text_that_mini_does_not_have_is_not_replaced_by_the_runs_own():
    suite, arm = SUITES.find("heldout_transfer"), ARMS["heldout_transfer", "scse-22m"]
    owt, c4 = suite.column("OpenWebText T=8"), suite.column("C4 T=8")
    assert (PAPER.corpus(arm, owt), PAPER.split(owt)) == ("openwebtext", "heldout")
    assert (MINI.corpus(arm, owt), MINI.split(owt)) == ("stdlib", "test")
    assert MINI.corpus(arm, c4) is None
    assert evaluation(MINI, arm, c4) is None
    assert not fits(record(arm=arm), MINI, arm, replace(c4, depth=8))
    assert find_preset("mini").corpus(arm, owt) is None, "the embedded corpus is the runs' own there"


@pytest.mark.parametrize("name", ["mini", "paper"])
@pytest.mark.parametrize("data", [None, "stdlib", "wikitext-2", "my corpus"])
@pytest.mark.parametrize(("limit", "steps"), [(None, None), (64, None), (None, 2000), (7, 30)])
def test_the_options_that_a_preset_states_make_it_again(name, data, limit, steps):
    preset = find_preset(name, data, limit, steps)
    words = shlex.split(" ".join(options(preset)))
    given = dict(zip(words[::2], words[1::2], strict=True))
    numbers = (int(given[option]) if option in given else None for option in ("--limit", "--steps"))
    assert find_preset(name, given.get("--data"), *numbers) == preset


def test_suites_that_share_a_run_want_of_it_what_each_wants_alone():
    """Even where they train it under protocols of different names, as `--steps` can make it."""
    suites, preset = list(SUITES), find_preset("mini", steps=2000)
    alone = {}
    for suite in suites:
        for member in members([suite], preset, Path("runs"), (0,)):
            asked = alone.setdefault(member.folder, set())
            asked |= {key(member, column) for column in member.columns if member.available(column)}
    for member in members(suites, preset, Path("runs"), (0,)):
        assert {key(member, column) for column in member.columns if member.available(column)} == alone[member.folder]


def key(member, column):
    return str(evaluation(member.preset, member.arm, column)), column.metric


def test_steps_and_limit_make_other_runs_and_other_evaluations():
    shorter = find_preset("mini", "wikitext-2-v1", limit=2, steps=4)
    assert shorter.settings(ARM)["steps"] == 4
    assert shorter.folder(ARM) != MINI.folder(ARM)
    assert not fits(record(shorter), MINI, ARM, COLUMN)
    assert isinstance(shorter, Preset)
