"""Each control reduces to the simpler family when its extra part is switched off."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from scse import LoopedLM
from tinymodels import some_ids, tiny


def same_weights(target: LoopedLM, source: LoopedLM, rename=lambda name: name) -> None:
    """Give `target` the tensors of `source` where both have them; the rest of `target` keeps its own."""
    weights = target.state_dict()
    weights.update({rename(n): t for n, t in source.state_dict().items() if rename(n) in weights})
    target.load_state_dict(weights)


def assert_same(left, right, loops=(1, 4, 9), atol=0.0):
    ids = some_ids()
    for depth in loops:
        torch.testing.assert_close(left(ids, depth), right(ids, depth), rtol=0, atol=atol)


def injected(name: str) -> str:
    return name.replace("drive.proj", "drive.inner.proj").replace("drive.gain", "drive.inner.gain")


def test_leak_zero_is_sc_cond():
    plain = tiny("sc-cond")
    leaky = tiny("leak", leak=0.0)
    same_weights(leaky, plain)
    assert_same(leaky, plain)


@pytest.mark.parametrize("name", ["sc-cond", "sc-cond-unmasked"])
def test_no_conditioning_is_scse(name):
    plain, conditioned = tiny("scse"), tiny(name)
    same_weights(conditioned, plain)
    with torch.no_grad():
        conditioned.recurrence.drive.gain.zero_()
    assert_same(conditioned, plain)


def test_without_its_parts_scse_with_recall_is_scse():
    plain, bare = tiny("scse"), tiny("scse-recall", decay=False, recall="none")
    same_weights(bare, plain)
    assert plain.state_dict().keys() == bare.state_dict().keys()
    assert_same(bare, plain)


def test_the_mask_changes_nothing_away_from_the_anchor():
    assert_same(tiny("scse"), tiny("scse", mask=False))


def test_subtracting_from_a_zero_preserving_core_changes_nothing():
    plain, subtractive = tiny("scse"), tiny("sc-cond-subtractive")
    same_weights(subtractive, plain)
    with torch.no_grad():
        subtractive.recurrence.drive.gain.zero_()
    assert_same(subtractive, plain)


def test_scalar_gate_at_s_is_looped():
    plain, gated = tiny("looped"), tiny("scalar-gate")
    same_weights(gated, plain)
    with torch.no_grad():
        gated.recurrence.gain.gate.fill_(0.5)
    assert_same(gated, plain)


def test_channel_gate_fully_open_is_looped_with_unit_step():
    plain, gated = tiny("looped", step_scale=1.0), tiny("channel-gate")
    same_weights(gated, plain)
    with torch.no_grad():
        gated.recurrence.gain.proj.bias.fill_(1000.0)
    assert_same(gated, plain)


def test_a_reset_that_never_comes_is_looped():
    plain, never = tiny("looped"), tiny("norm-reset", reset_period=10)
    same_weights(never, plain)
    assert_same(never, plain)
    ids = some_ids()
    assert not torch.equal(never(ids, 10), plain(ids, 10))


def test_tied_unshared_is_looped_without_injection():
    plain, layered = tiny("looped", step_scale=1.0), tiny("unshared-3")
    for layer in range(3):
        same_weights(layered, plain, lambda n, k=layer: n.replace("core.block.", f"core.blocks.{k}."))
    with torch.no_grad():
        plain.recurrence.drive.gain.zero_()
    assert_same(layered, plain, loops=(1, 2, 3))
    ids = some_ids()
    assert torch.equal(layered(ids, 48), plain(ids, 3)), "the depth saturates at the number of layers"


@pytest.mark.parametrize(("name", "off"), [("step-adapter", "step_signal"), ("film-adapter", "film_scale")])
def test_zero_step_conditioning_is_the_adapter(name, off):
    plain, conditioned = tiny("tuned-adapter"), tiny(name, **{off: 0.0})
    same_weights(conditioned, plain, injected)
    assert_same(conditioned, plain)


def test_film_reuses_its_last_step_beyond_the_table():
    short, long = tiny("film-adapter", film_steps=3), tiny("film-adapter", film_steps=12)
    same_weights(long, short, lambda name: name if "table" not in name else "none")
    with torch.no_grad():
        table = short.recurrence.drive.table.weight
        long.recurrence.drive.table.weight.copy_(torch.cat([table, table[-1:].expand(9, -1)]))
    assert_same(long, short, loops=(2, 9, 12))


def test_presets_are_their_family_with_other_options():
    assert_same(tiny("tuned-adapter"), tiny("adapter", step_scale=0.35))
    assert_same(tiny("looped-s035"), tiny("looped", step_scale=0.35))
    assert_same(tiny("sc-cond-unmasked"), tiny("sc-cond", mask=False))


def test_the_initial_anchor_makes_the_output_independent_of_depth():
    model, ids = tiny("scse-initial"), some_ids()
    logits = [model.readout(state.hidden) for state in islice(model.unroll(ids), 1, 49)]
    assert all(torch.equal(logits[0], other) for other in logits)


def test_the_mask_is_per_example_over_the_whole_sequence():
    """One example below the threshold stands still while its neighbours move, all its positions together."""
    model, ids = tiny("scse"), some_ids()
    frame = model.recurrence.begin(model.embed(ids))
    z = frame.start.clone()
    z[1] = 0
    z[1, 4, 2] = 0.9e-4  # squared norm 8.1e-9, below 1e-8
    moved = model.recurrence.step(0, z, frame)
    raw = model.recurrence.step(0, z, frame, masked=False)
    assert torch.equal(moved[1], z[1])
    assert not torch.equal(raw[1], z[1])
    assert torch.equal(moved[[0, 2]], raw[[0, 2]])
    z[1, 4, 2] = 1.1e-4  # squared norm 1.21e-8, above
    assert torch.equal(model.recurrence.step(0, z, frame), model.recurrence.step(0, z, frame, masked=False))
    assert not torch.equal(model.recurrence.step(0, z, frame)[1], z[1])


def test_frozen_random_anchor_is_not_trained():
    model = tiny("scse-random")
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    assert frozen == ["recurrence.anchor.map.proj.weight"]


def test_reading_without_normalised_projections_is_available():
    with_n, without = tiny("scse"), tiny("scse", normalise_projections=False)
    e = with_n.embed(some_ids())
    weight = without.recurrence.start.map.proj.weight
    torch.testing.assert_close(without.recurrence.start(e), e + 0.1 * e @ weight.T, rtol=0, atol=1e-12)
    assert not torch.equal(with_n.recurrence.start(e), without.recurrence.start(e))
