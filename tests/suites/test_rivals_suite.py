"""The suite of rivals: models of equal size, one thing changed at a time, each task asked for its own numbers."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from scse.accounting import count_parameters, skeleton
from scse.config import assemble, protocol
from scse.flops import token_flops
from scse.suites import SUITES
from scse.suites.evidence import Shelf, gather
from scse.suites.needed import members
from scse.suites.presets import find_preset
from scse.suites.rivals import CHASE, MAIN, PARCAES, SCSES, TEXT
from scse.suites.setting import ours

RIVALS = SUITES.find("rivals")
PRESETS = {name: find_preset(name, "wikitext-2-v1" if name == "mini" else None) for name in ("mini", "paper")}


def config(arm, preset):
    return assemble(arm.family, PRESETS[preset].settings(arm))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("task", [CHASE, TEXT])
def test_all_rows_have_equal_parameters_and_equal_flops_at_the_mean_training_depth(preset, task):
    arms = [arm for arm in RIVALS.arms if arm.protocol == task]
    base = config(next(arm for arm in arms if arm.family == "scse"), preset)
    depth = (base.max_loops + 1) / 2
    wanted = count_parameters(base.model).active
    flops = token_flops(base.model.shape, depth)
    for arm in arms:
        chosen = config(arm, preset)
        assert count_parameters(chosen.model).active == pytest.approx(wanted, rel=5e-3), arm.name
        assert chosen.max_loops == base.max_loops
        # The FLOPs of so many applications of the core: of half as many loops where a loop has two.
        bodies = skeleton(chosen.model).recurrence.bodies_per_step
        assert bodies == (2 if arm.family.startswith("centred") else 1)
        assert token_flops(chosen.model.shape, depth) == pytest.approx(flops, rel=0.125), arm.name


def test_the_chase_of_16_nodes_uses_the_same_runs_and_layers_of_as_many_parameters():
    chase, preset = SUITES.find("depth-tasks-16"), PRESETS["mini"]
    wanted = count_parameters(config(RIVALS.arm("scse-chase"), "mini").model).active
    shared = {preset.folder(arm) for arm in RIVALS.arms}
    assert [arm.name for arm in chase.arms if preset.folder(arm) not in shared] == ["narrow"]
    narrow = config(chase.arm("narrow"), "mini")
    assert count_parameters(narrow.model).active == pytest.approx(wanted, rel=5e-3)
    assert narrow.max_loops == skeleton(narrow.model).recurrence.core.trained_depth


def test_scse_is_the_plain_protocol_so_that_other_runs_of_it_count():
    plain = {TEXT: {**protocol("mini"), "data": "wikitext-2-v1", "steps": 2000}, CHASE: protocol("pointer-chase")}
    for name in ("scse-text", "scse-chase"):
        arm = RIVALS.arm(name)
        assert PRESETS["mini"].settings(arm) == plain[arm.protocol]


def test_rows_taken_apart_change_one_thing():
    base = {"parcae": PARCAES[0].options, "scse": {}}
    for variant in PARCAES[1:]:
        assert len(variant.options.items() - base["parcae"].items()) == 1
    plain = {"decay": False, "recall": "none", "step_scale": 0.5, "state_norm": False, "normalise_source": False}
    for variant in SCSES:
        full = {**plain, **({"decay": True, "recall": "orthogonal"} if variant.family == "scse-recall" else {})}
        changed = {**full, **variant.options}.items() - plain.items()
        assert len(changed) == (2 if variant.name == "scse-recall-plain" else 1), variant.name
    assert all(row.name == row.family and not row.options for row in MAIN)


def test_every_run_is_asked_only_what_its_task_has():
    found = members([RIVALS], PRESETS["mini"], Path("runs"), seeds=(0,))
    assert len(found) == len(RIVALS.arms)
    for member in found:
        asked = {column.task for column in member.columns if member.available(column)}
        own = {"accuracy"} if member.arm.protocol == CHASE else {"perplexity", "adaptive", "pareto"}
        assert asked == own | {"diagnose", "size"}, member.arm.name
    assert all(a.arm.protocol == CHASE or b.arm.protocol == TEXT for a, b in pairwise(found)), "short runs come first"


def test_the_setting_is_stated_as_it_is_run():
    said = ours(RIVALS, PRESETS["mini"])
    assert said == "pointer-chase and wikitext-2-v1, width 64 and 128, context 32 and 128, 2,000 steps"


def test_without_records_nothing_is_claimed():
    found = gather(RIVALS, Shelf([], PRESETS["mini"]))
    assert found.counts[0] == 0 < found.counts[1]
    assert not found.cells["scse-chase", "T=8"].wanted
    assert found.cells["scse-text", "T=8"].wanted
