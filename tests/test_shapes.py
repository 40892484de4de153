"""The model's shape: layers around and inside the loop, positions, norms, heads. Laws over every family."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path

import pytest
import torch

from reference import reference_logits
from scse import LoopedLM, ModelConfig, Shape, load_model, model_config, save_model
from scse.accounting import count_parameters, flop_proxy
from scse.config import assemble
from scse.errors import UserError
from scse.evaluation.perplexity import perplexity_over_depths
from scse.evaluation.rules import RULES
from scse.flops import layer_flops
from scse.generation.quality import cached_perplexity
from scse.nn.attention import rotate
from scse.progress import SILENT
from scse.records import read_records
from tinymodels import SHAPES, TINY, VALUED, some_ids, tiny

RESULTS = Path(__file__).parents[1] / "results"
OPENED = [name for name in SHAPES if name != "block"]


@pytest.mark.parametrize("name", OPENED)
@torch.no_grad()
def test_equals_the_independent_reference(family, name):
    model, ids = tiny(family, shape=SHAPES[name], spread=0.1), some_ids()
    for loops in (1, 4):
        torch.testing.assert_close(model(ids, loops), reference_logits(model, ids, loops), rtol=0, atol=1e-10)


@torch.no_grad()
def test_causality_and_prefixes(family):
    model, ids = tiny(family, shape=SHAPES["everything"]), some_ids()
    along = [model.readout(state.hidden) for state in islice(model.unroll(ids), 1, 4)]
    assert all(torch.equal(model(ids, loops), logits) for loops, logits in enumerate(along, start=1))
    changed = ids.clone()
    changed[:, 6] = (changed[:, 6] + 7) % TINY.vocabulary
    after = model(changed, 3)
    assert torch.equal(along[2][:, :6], after[:, :6])
    assert not torch.equal(along[2][:, 6:], after[:, 6:])


def test_every_parameter_has_a_gradient_and_is_saved(family, tmp_path):
    model, ids = tiny(family, shape=SHAPES["everything"], dtype=torch.float32), some_ids()
    model(ids, 3).logsumexp(-1).sum().backward()
    dead = [n for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    unused_core = [n for n, _ in model.named_parameters() if n.startswith("recurrence.core.")]
    assert dead == (unused_core if family == "scse-initial" else [])
    save_model(model, tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.config == model.config
    assert torch.equal(loaded(ids, 3), model(ids, 3))


@pytest.mark.parametrize("family", ["parcae", "sc-cond-subtractive", "universal", "unshared-3", "centred-huginn"])
def test_value_embeddings(family, tmp_path):
    """Of their token and nobody else's: against the reference, cached, in rows of a batch, through a file."""
    model, ids = tiny(family, shape=VALUED, spread=0.1), some_ids()
    assert len(model.values) == 3
    with torch.no_grad():
        logits = model(ids, 3)
        torch.testing.assert_close(logits, reference_logits(model, ids, 3), rtol=0, atol=1e-10)
        states = list(islice(model.unroll(ids), 3))
        row = states[2].rows(torch.tensor([False, True, False])).step()
        torch.testing.assert_close(model.readout(row.hidden)[0], logits[1], rtol=0, atol=1e-12)
        found = RULES.find("relative").statistic(model, states[1].hidden, states[2].hidden)
        moved = (states[2].hidden - states[1].hidden)[..., : TINY.width].norm(dim=-1)
        torch.testing.assert_close(found, moved / states[2].hidden[..., : TINY.width].norm(dim=-1), rtol=1e-9, atol=0)
        tokens = ids.numpy()[:1].repeat(2, 1).ravel().astype("uint16")
        cached = cached_perplexity(model, tokens, 3, "exact", 2, None, SILENT)
        plain, *_ = perplexity_over_depths(model, tokens, [3, 5])
        assert cached.nll == pytest.approx(plain.nll, rel=1e-12)
    model(ids, 3).logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.values.parameters())
    save_model(model.float(), tmp_path)
    assert torch.equal(load_model(tmp_path)(ids, 3), model(ids, 3))


def test_a_core_of_two_layers_adds_what_both_add():
    model, ids = tiny("scse", shape=replace(TINY, core=2)), some_ids()
    first, second = model.recurrence.core.blocks
    x = model.embed(ids)
    u = first(x)
    assert torch.equal(model.recurrence.core(0, x), u + second(x + u))


def test_more_layers_leave_the_start_of_training_alone():
    """A layer more in prelude or coda draws its weights where it stands; the tokens' are the same."""
    plain, opened = (LoopedLM(model_config("scse", shape), seed=4) for shape in (TINY, SHAPES["layers"]))
    assert torch.equal(plain.tokens.weight, opened.tokens.weight)
    assert len(opened.prelude) == 1
    assert len(opened.coda) == 2


def test_rotations_see_differences_of_positions_only():
    x, y = (torch.randn(1, 1, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in (0, 1))

    def product(first, second):
        places = (torch.tensor([first]), torch.tensor([second]))
        return float((rotate(x, places[0], 100.0) * rotate(y, places[1], 100.0)).sum())

    assert product(3, 1) == pytest.approx(product(9, 7), rel=1e-12)
    assert product(3, 1) != pytest.approx(product(3, 2), rel=1e-3)
    assert torch.equal(rotate(x, torch.tensor([0]), 100.0), x)


def test_counts_follow_the_layers():
    def count(**change):
        return count_parameters(model_config("scse", replace(TINY, **change))).active

    layer = 4 * 24**2 + 3 * 24 * 48 + 2 * 24
    assert count(prelude=2) == count(coda=2) == count(core=3) == count() + 2 * layer
    assert count(sandwich=True) == count() + 2 * 24
    assert count(qk_norm=True) == count(qk_bias=True) - 2 * 24 + 2 * 8 == count() + 2 * 8
    assert count(kv_heads=1) == count() - 2 * 24 * 16
    assert count(mlp="relu2") == count() - 24 * 48
    assert count(value_embeddings=True) == count() + 61 * 24 + 24 * 3
    assert count(tied=False) == count() + 61 * 24
    assert count(positions="rope") == count() - 16 * 24
    shape = SHAPES["layers"]
    assert flop_proxy(model_config("scse", shape), 5).body == (5 * 2 + 3) * layer_flops(shape)
    assert layer_flops(TINY) - layer_flops(replace(TINY, kv_heads=1)) == 4 * 24 * 16


@pytest.mark.parametrize(("change", "message"), [
    ({"prelude": -1}, "prelude must be between 0 and"),
    ({"core": 0}, "core must be between 1 and"),
    ({"positions": "rpoe"}, "did you mean 'rope'"),
    ({"mlp": "relu"}, "did you mean 'relu2'"),
    ({"positions": "rope", "heads": 8}, "even number"),
    ({"kv_heads": 2}, "do not divide 3 heads"),
    ({"stream_norm": True}, "sandwich=true"),
    ({"embed_scale": 0.0}, "embed_scale must be positive"),
])  # fmt: skip
def test_mistakes_are_named(change, message):
    with pytest.raises(UserError, match=message):
        replace(TINY, **change)


def test_neutral_fields_are_not_written_and_missing_ones_are_neutral():
    config = model_config("scse", TINY)
    stored = config.to_dict()
    assert tuple(stored["shape"]) == Shape.FIRST
    assert ModelConfig.from_dict(stored) == config
    opened = model_config("scse", replace(TINY, coda=1, tied=False))
    assert opened.to_dict()["shape"] == {**stored["shape"], "coda": 1, "tied": False}
    assert ModelConfig.from_dict(opened.to_dict()) == opened
    for change, message in (
        ({"cods": 1}, "did you mean 'coda'"),
        ({"coda": True}, "must be a number"),
        ({"tied": 1}, "must be true or false"),
        ({"positions": 3}, "must be a text"),
    ):
        with pytest.raises(UserError, match=message):
            ModelConfig.from_dict({**stored, "shape": {**stored["shape"], **change}})
    with pytest.raises(UserError, match="lacks 'context'"):
        Shape.from_dict({name: value for name, value in stored["shape"].items() if name != "context"})


def test_a_field_that_comes_later_orphans_nothing():
    @dataclass(frozen=True)
    class Later(Shape):
        added: int = 7

    old = {f.name: getattr(TINY, f.name) for f in fields(Shape) if f.name in Shape.FIRST}
    assert Later.from_dict(old).added == 7
    assert Later.from_dict(old).to_dict() == old == TINY.to_dict()
    assert Later.from_dict({**old, "added": 8}).to_dict() == {**old, "added": 8}


def test_committed_records_are_still_of_their_models():
    """Every identity in the results is written as its configuration is written today."""
    records = read_records(sorted(RESULTS.rglob("*.jsonl")))
    assert len(records) > 100
    for stated in {json.dumps(record.identity["model"], sort_keys=True) for record in records}:
        assert json.dumps(ModelConfig.from_dict(json.loads(stated)).to_dict(), sort_keys=True) == stated


def test_shape_options_reach_a_run_by_their_names():
    options = {"steps": 3, "prelude": "1", "core": "2", "coda": "1", "positions": "rope", "tied": "false"}
    shape = assemble("huginn", options).model.shape
    assert (shape.prelude, shape.core, shape.coda, shape.positions, shape.tied) == (1, 2, 1, "rope", False)
