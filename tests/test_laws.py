"""Laws that every family obeys, run over the whole table."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from reference import REFERENCES, reference_logits
from scse import FAMILIES, LoopedLM, deviation_map, load_model, model_config, save_model, unroll
from scse.errors import UserError
from scse.files import file_hash, write_sealed
from scse.nn.storage import ALIGNMENT
from scse.persistence import FORMAT
from scse.testing import LAWS, small_model
from tinymodels import NAMES, TINY, displace, shift_tensors, some_ids, tiny


def frame_of(model, ids):
    return model.recurrence.begin(model.embed(ids))


def test_every_family_has_a_reference():
    assert set(REFERENCES) == set(NAMES)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_the_laws_that_a_guest_is_held_to(family, law):
    law.check(small_model(family))


@pytest.mark.parametrize("loops", [1, 3, 9])
def test_equals_the_independent_reference(family, loops):
    model, ids = tiny(family), some_ids()
    torch.testing.assert_close(model(ids, loops), reference_logits(model, ids, loops), rtol=0, atol=1e-10)


def test_reference_at_default_initialisation(family):
    """The spread of the law above is not the one models start with; here the deviations are small."""
    model, ids = LoopedLM(model_config(family, TINY), seed=3).double().eval(), some_ids()
    torch.testing.assert_close(model(ids, 4), reference_logits(model, ids, 4), rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_causality_is_bit_exact(family, dtype):
    model, ids = tiny(family, dtype=dtype), some_ids()
    before = model(ids, 5)
    for position in (1, 6, ids.shape[1] - 1):
        changed = ids.clone()
        changed[:, position] = (changed[:, position] + 7) % TINY.vocabulary
        after = model(changed, 5)
        assert torch.equal(before[:, :position], after[:, :position])
        assert not torch.equal(before[:, position:], after[:, position:])


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_anchor_is_exactly_fixed_where_claimed(family, masked, dtype):
    model, ids = tiny(family, dtype=dtype), some_ids()
    claimed = model.recurrence.anchor_preserving if masked else model.recurrence.zero_preserving
    frame = frame_of(model, ids)
    if frame.anchor is None:
        assert not claimed
        return
    zero = torch.zeros_like(frame.embedding)
    for t in range(9):
        forcing = deviation_map(model.recurrence, t, zero, frame, masked)
        assert bool((forcing == 0).all()) == claimed


def test_an_anchor_started_rollout_stays_where_claimed(family):
    model, ids = tiny(family, dtype=torch.float32), some_ids()
    frame = frame_of(model, ids)
    if not model.recurrence.anchor_preserving:
        return
    for state in islice(unroll(model.recurrence, frame, start=frame.anchor), 49):
        assert torch.equal(state.z, torch.zeros_like(state.z))
        assert torch.equal(state.hidden, frame.hidden_anchor)


def test_claims_are_those_of_the_paper():
    raw = {name for name in NAMES if tiny(name).recurrence.zero_preserving}
    masked = {name for name in NAMES if tiny(name).recurrence.anchor_preserving}
    anchors = {"scse", "scse-embedding", "scse-initial", "scse-random"}
    rivals = {"centred-huginn", "centred-parcae", "centred-orthogonal-injection"}
    assert raw == anchors | rivals | {"sc-cond-subtractive", "forcing-subtraction", "scse-recall"}
    assert masked == raw | {"sc-cond", "leak"}


def test_unroll_equals_stepping_by_hand(family):
    model, ids = tiny(family), some_ids()
    frame = frame_of(model, ids)
    z = frame.start
    for t, state in enumerate(islice(model.unroll(ids), 7)):
        assert state.t == t
        assert torch.equal(state.z, z)
        z = model.recurrence.step(t, z, frame)


def test_depth_is_a_prefix_of_every_larger_depth(family):
    model, ids = tiny(family, dtype=torch.float32), some_ids()
    along = [model.readout(state.hidden) for state in islice(model.unroll(ids), 1, 10)]
    for loops, logits in enumerate(along, start=1):
        assert torch.equal(model(ids, loops), logits)


def test_rows_of_a_batch_do_not_see_each_other(family):
    model, ids = tiny(family), some_ids()
    together = model(ids, 4)
    for row in range(ids.shape[0]):
        torch.testing.assert_close(model(ids[row : row + 1], 4), together[row : row + 1], rtol=0, atol=1e-12)


def test_the_map_ignores_t_unless_it_says_so(family):
    model, ids = tiny(family), some_ids()
    frame = frame_of(model, ids)
    steps = [model.recurrence.step(t, frame.start, frame) for t in range(9)]
    assert any(not torch.equal(steps[0], other) for other in steps) == model.recurrence.step_dependent


def test_deviation_is_hidden_minus_anchor(family):
    model, ids = tiny(family), some_ids()
    state = next(islice(model.unroll(ids), 3, None))
    if state.frame.hidden_anchor is None:
        with pytest.raises(UserError, match="no anchor"):
            _ = state.deviation
        return
    torch.testing.assert_close(state.deviation, state.hidden - state.frame.hidden_anchor, rtol=0, atol=1e-12)


def test_every_trainable_parameter_has_a_gradient(family):
    """No dead weights: each trainable tensor moves the loss. (A frozen anchor at h_0 has nothing to train.)"""
    model, ids = tiny(family), some_ids()
    model(ids, 3).logsumexp(-1).sum().backward()
    dead = [n for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    unused_core = [n for n, _ in model.named_parameters() if n.startswith("recurrence.core.")]
    assert dead == (unused_core if family == "scse-initial" else [])


def test_save_and_load_round_trips(family, tmp_path):
    model, ids = tiny(family, dtype=torch.float32), some_ids()
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.config == model.config
    assert torch.equal(loaded(ids, 4), model(ids, 4))
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]


@torch.no_grad()
def test_the_place_of_weights_in_memory_changes_no_bit(family, tmp_path):
    """Whatever address weights are saved from, and wherever in a file they lie, the loaded model has the same bits."""
    model, ids = tiny(family, dtype=torch.float32), some_ids()
    alone = ids[:1, :1]  # products with a single row are the ones that an address can change
    expected = model(ids, 4), model(alone, 4)
    displace(model, by=1)
    assert {p.data_ptr() % ALIGNMENT for p in model.parameters()} == {4}
    save_model(model, tmp_path / "model")
    for shift in (0, 4, 12):
        weights = tmp_path / "model" / "model.safetensors"
        shift_tensors(weights, shift)
        stated = {"model": model.config.to_dict(), "weights": file_hash(weights)}
        write_sealed(tmp_path / "model" / "config.json", FORMAT, stated)
        loaded = load_model(tmp_path / "model")
        assert {p.data_ptr() % ALIGNMENT for p in loaded.parameters()} == {0}
        assert torch.equal(loaded(ids, 4), expected[0])
        assert torch.equal(loaded(alone, 4), expected[1])


@torch.no_grad()
def test_the_step_signal_has_the_same_bits_at_any_address():
    model = tiny("step-adapter", dtype=torch.float32)
    drive, z = model.recurrence.drive, torch.zeros(1, 1, TINY.width)
    signals = []
    for by in range(5):
        displace(drive, by)
        signals.append(drive(3, z, torch.zeros_like(z)))
    assert all(torch.equal(signal, signals[0]) for signal in signals)


def test_initialisation_depends_on_the_seed_alone(family):
    first = LoopedLM(model_config(family, TINY), seed=1).state_dict()
    torch.manual_seed(99)
    again = LoopedLM(model_config(family, TINY), seed=1).state_dict()
    other = LoopedLM(model_config(family, TINY), seed=2).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["tokens.weight"], other["tokens.weight"])


def test_equations_are_stated():
    for family in FAMILIES:
        assert "' = " in family.equation
