"""The numbers of the lens against evaluation, against the definition, and against what a page can carry."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lenstext import LOOPS, TEXT

import scse
from scse.errors import UserError
from scse.evaluation import perplexity_over_depths
from scse.evaluation.rules import RULES
from scse.lens.compute import window
from scse.lens.look import Subject, look
from scse.lens.pack import ATTENTION_LEVELS, decoded_attention, pack_attention, rounded
from scse.nn.attention import CausalSelfAttention
from scse.runs import open_run
from tinymodels import TINY, some_ids, tiny


def looked(model, ids, loops=5, **options):
    return look(Subject("tiny", model), ids, loops, model.config.shape.context, **options).finish()


def test_perplexity_is_that_of_evaluation(family):
    """For every family, at every depth, also where the text is longer than the context."""
    model = tiny(family)
    for ids in (some_ids(1, 11)[0].tolist(), some_ids(1, 30)[0].tolist()):
        found = looked(model, ids)
        expected = perplexity_over_depths(model, np.array(ids[: TINY.context + 1]), [1, 2, 3, 4, 5])
        assert found.perplexities()[1:] == pytest.approx([row.ppl for row in expected], rel=1e-4)


def test_the_statistics_are_those_of_the_exit_rules(family):
    model, ids = tiny(family), some_ids(1, 9)
    found = looked(model, ids[0].tolist())
    arrays = {**found.traced.arrays, **{k: np.concatenate([r.arrays[k] for r in found.rows]) for k in ("kl", "nll")}}
    states = [state.hidden for state in islice(model.unroll(ids), 6)]
    with torch.no_grad():
        for name, rule in ((name, RULES.find(name)) for name in ("update", "relative", "kl")):
            for t in range(1, 6):
                expected = rule.statistic(model, states[t - 1], states[t])[0]
                np.testing.assert_allclose(arrays[name][:, t], expected, rtol=1e-4, atol=1e-5, err_msg=f"{name} {t}")
            assert np.isnan(arrays[name][:, 0]).all()
    assert np.isnan(arrays["nll"][-1]).all(), "nothing is known to follow the last token"


def test_what_the_readouts_say():
    model, ids = tiny("scse"), some_ids(1, 8)
    found = looked(model, ids[0].tolist(), loops=4)
    with torch.no_grad():
        log_p = torch.stack([F.log_softmax(model.readout(s.hidden), -1)[0] for s in islice(model.unroll(ids), 5)])
    p, last = log_p.exp(), log_p[-1].argmax(-1)
    (rows,) = found.rows
    np.testing.assert_array_equal(rows.arrays["answer"], log_p.argmax(-1).T)
    np.testing.assert_allclose(rows.arrays["entropy"], -(p * log_p).sum(-1).T, rtol=1e-4)
    np.testing.assert_allclose(rows.arrays["final"], p[:, range(8), last].T, rtol=1e-4)
    toward_last = (p[-1] * (log_p[-1] - log_p)).sum(-1).T
    np.testing.assert_allclose(rows.arrays["kl_last"], toward_last, rtol=1e-3, atol=1e-6)
    ever = p.amax(0)
    for i in range(8):
        best = set(ever[i].topk(10).indices.tolist())
        assert set(rows.candidates[i].tolist()) == best
        np.testing.assert_allclose(rows.chances[i], p[:, i, rows.candidates[i]].T, rtol=1e-4)


def test_norms_and_the_anchor():
    model, ids = tiny("scse"), some_ids(1, 8)
    traced = looked(model, ids[0].tolist(), loops=3).traced
    states = list(islice(model.unroll(ids), 4))
    for t, state in enumerate(states):
        np.testing.assert_allclose(traced.arrays["state"][:, t], state.hidden[0].detach().norm(dim=-1), rtol=1e-5)
        np.testing.assert_allclose(
            traced.arrays["deviation"][:, t], state.deviation[0].detach().norm(dim=-1), rtol=1e-5
        )
    np.testing.assert_allclose(traced.anchor, states[0].frame.hidden_anchor[0].detach().norm(dim=-1), rtol=1e-5)


def test_a_family_without_an_anchor_says_why():
    found = looked(tiny("unshared-3"), some_ids(1, 8)[0].tolist())
    assert found.traced.anchor is None
    assert "deviation" not in found.traced.arrays
    assert "no anchor" in found.plain()["no_anchor"]
    assert [t for t, weights in enumerate(found.traced.attention) if weights is not None] == [1, 2, 3]


def test_attention_weights_are_those_that_the_model_uses():
    """Values mixed with them, projected, are what the fused attention gives; and every position looks back only."""
    module = CausalSelfAttention(TINY).double().eval()
    x = torch.randn(2, 7, TINY.width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        weights = module.weights(x)
        v = module.qkv(x)[..., 2 * TINY.width :].view(2, 7, TINY.heads, -1).transpose(1, 2)
        mixed = (weights @ v).transpose(1, 2).reshape(2, 7, TINY.width)
        torch.testing.assert_close(module.out(mixed), module(x))
    assert (weights.triu(1) == 0).all()


@pytest.mark.parametrize(("name", "applications"), [("scse", 1), ("sc-cond-subtractive", 2)])
def test_every_application_of_attention_is_seen_and_survives_packing(name, applications):
    model = tiny(name)
    found = looked(model, some_ids(1, 9)[0].tolist(), loops=4)
    weights = found.traced.attention
    assert weights[0] is None
    assert weights[4].shape == (applications, TINY.heads, 9, 9)
    packed = pack_attention(weights)
    decoded = decoded_attention(packed)
    for t in range(1, 5):
        roots = np.sqrt(decoded[t].reshape(weights[t].shape))
        assert np.abs(roots - weights[t].sqrt().numpy()).max() <= 0.5 / packed["levels"] + 1e-6
    coarse = pack_attention(weights, budget=0)
    assert (packed["levels"], coarse["levels"]) == (ATTENTION_LEVELS[0], ATTENTION_LEVELS[-1])
    assert not model.recurrence.core.block.attention._forward_pre_hooks, "nothing is left behind"


def test_rounding_keeps_so_many_bits():
    values = np.array([1.0, 1.0 + 2**-11, 3.14159265, 1e-30, 0.0, np.nan, np.inf], dtype=np.float32)
    kept = rounded(values, 11)
    np.testing.assert_allclose(kept[:5], values[:5], rtol=2**-11)
    assert np.isnan(kept[5])
    assert np.isinf(kept[6])
    assert (kept.view(np.uint32)[:5] & 0x1FFF == 0).all()


def test_the_window_is_the_first_of_an_evaluation():
    whole = window([5, 6, 7], 8)
    assert (whole.ids.tolist(), whole.targets.tolist(), whole.total, whole.scored) == ([5, 6, 7], [6, 7, -1], 3, 2)
    cut = window([5, 6, 7, 8], 2)
    assert (cut.ids.tolist(), cut.targets.tolist(), cut.total, cut.scored) == ([5, 6], [6, 7], 4, 2)
    with pytest.raises(UserError, match="no text"):
        window([], 8)


def test_a_model_in_training_is_looked_at_without_dropout_and_goes_on_training():
    model, ids = tiny("scse"), some_ids(1, 8)[0].tolist()
    quiet = looked(model, ids).perplexities()
    model.train()
    assert looked(model, ids).perplexities() == quiet
    assert model.training


def test_from_python(trained):
    """By folder, opened, or as a bare model with its tokenizer; calling the package is calling its function."""
    folder = trained("scse")
    opened = open_run(folder)
    first = scse.lens(str(folder), TEXT, loops=3)
    bare = scse.lens(opened.model, TEXT, loops=3, tokenizer=opened.tokenizer)
    assert first.plain()[0]["values"] == bare.plain()[0]["values"]
    assert scse.lens(opened, TEXT, loops=3).html() == first.html()
    assert first._repr_html_().startswith("<iframe sandbox=")
    assert "3 loops" in repr(first)
    numbers = scse.lens(tiny("scse"), some_ids(1, 6)[0].tolist(), loops=2).plain()[0]
    assert numbers["tokens"][0].startswith("#")
    with pytest.raises(UserError, match="give its tokenizer"):
        scse.lens(opened.model, TEXT)


def test_mistakes(trained):
    ids = some_ids(1, 4)[0].tolist()
    with pytest.raises(UserError, match="at least 1"):
        scse.lens(tiny("scse"), ids, loops=0)
    with pytest.raises(UserError, match="5 rows for 4 tokens"):
        scse.lens(tiny("scse"), ids, loops=2, truth=[[1]] * 5)
    with pytest.raises(UserError, match="9 answers in a row for 2 loops"):
        scse.lens(tiny("scse"), ids, loops=2, truth=[[1] * 9])
    with pytest.raises(UserError, match="an answer is one token"):
        scse.lens(str(trained("scse")), TEXT, loops=2, truth=[[" anchor again rests"]])
    with pytest.raises(UserError, match="rows cannot stand side by side; make a page for each"):
        scse.lens([str(trained("scse")), str(trained("other"))], TEXT, loops=2)


def test_the_true_path_by_text_or_id(trained):
    truth = [None, [None, " the", 7]]
    (found,) = scse.lens(str(trained("scse")), TEXT, loops=LOOPS, truth=truth).looks
    assert found.truth[0] == []
    assert found.truth[1] == [None, found.subject.encode(" the")[0], 7]
    assert found.plain()["truth"][1][1] == " the"
