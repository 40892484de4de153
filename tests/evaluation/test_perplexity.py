"""Perplexity over depths: one unroll, every token once, token-weighted."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from scse.errors import UserError
from scse.evaluation import perplexity_over_depths
from scse.evaluation.perplexity import windows
from scse.runs.partial import Partial
from scse.signals import Terminated
from tinymodels import TINY, tiny

TOKENS = np.random.default_rng(0).integers(0, TINY.vocabulary, 16 * 7 + 6).astype(np.uint16)


def test_windows_cover_every_target_once_and_keep_the_last_partial_one():
    parts = list(windows(TOKENS, 16, batch=3))
    assert [tuple(inputs.shape) for inputs, _ in parts] == [(3, 16), (3, 16), (1, 16), (1, 5)]
    targets = torch.cat([target.flatten() for _, target in parts])
    assert targets.tolist() == TOKENS[1:].tolist()
    inputs = torch.cat([part.flatten() for part, _ in parts])
    assert inputs.tolist() == TOKENS[:-1].tolist()


@torch.no_grad()
def test_equals_a_direct_float64_sum(family):
    model = tiny(family)
    cuts = [torch.from_numpy(TOKENS[at : at + 17].astype(np.int64))[None] for at in range(0, len(TOKENS) - 1, 16)]
    sums = {
        depth: sum(F.cross_entropy(model(cut[:, :-1], depth)[0], cut[0, 1:], reduction="sum").item() for cut in cuts)
        for depth in (1, 3, 8)
    }
    for batch in (1, 3, 32):
        for result in perplexity_over_depths(model, TOKENS, list(sums), batch=batch):
            assert result.tokens == len(TOKENS) - 1
            assert result.nll == pytest.approx(sums[result.depth] / result.tokens, rel=1e-12)
            assert result.ppl == pytest.approx(math.exp(sums[result.depth] / result.tokens), rel=1e-12)


def test_one_pass_over_depths_is_bit_equal_to_separate_passes(family):
    model = tiny(family, dtype=torch.float32)
    together = perplexity_over_depths(model, TOKENS, [8, 1, 3])
    separate = [perplexity_over_depths(model, TOKENS, [depth])[0] for depth in (8, 1, 3)]
    assert together == separate


def test_unshared_layers_saturate():
    at = {r.depth: r.ppl for r in perplexity_over_depths(tiny("unshared-3"), TOKENS, [2, 3, 48])}
    assert at[3] == at[48] != at[2]


def test_evaluation_leaves_the_model_in_its_mode():
    model = tiny("scse").train()
    perplexity_over_depths(model, TOKENS, [1])
    assert model.training


@pytest.mark.parametrize("limit", [1, 3])
def test_a_limit_keeps_the_first_windows(limit):
    (result,) = perplexity_over_depths(tiny("scse"), TOKENS, [2], limit=limit)
    assert result.tokens == 16 * limit


def test_bad_input():
    with pytest.raises(UserError, match="depths must be at least 1"):
        perplexity_over_depths(tiny("scse"), TOKENS, [0, 4])
    with pytest.raises(UserError, match="nothing to predict"):
        perplexity_over_depths(tiny("scse"), TOKENS[:1], [4])


def test_an_evaluation_that_is_stopped_goes_on_where_it_was(tmp_path, monkeypatch):
    """To the same bits, also after a kill; of another evaluation or of damaged sums nothing is taken."""
    model, tokens = tiny("scse"), np.arange(16 * 7 + 5) % 61
    asked = (model, tokens, [1, 3], 2)
    undisturbed = perplexity_over_depths(*asked)
    read = []
    monkeypatch.setattr(model, "place", lambda *parts: read.append(len(parts)) or parts)

    def stopped_after(batches):
        real, left = model.unroll, iter(range(batches))

        def unroll(ids):
            if next(left, None) is None:
                raise Terminated
            return real(ids)

        with monkeypatch.context() as patch:
            patch.setattr(model, "unroll", unroll)
            with pytest.raises(Terminated):
                perplexity_over_depths(*asked, partial=Partial(tmp_path, {"a": 1}))

    stopped_after(2)
    stopped_after(1)
    assert Partial(tmp_path, {"a": 2}).found() == {}
    read.clear()
    assert perplexity_over_depths(*asked, partial=Partial(tmp_path, {"a": 1})) == undisturbed
    assert len(read) == 5 - 3, "of five batches three were done"
    assert list(tmp_path.iterdir()) == []

    monkeypatch.setattr("scse.runs.partial.SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(Partial, "forget", lambda self: None)  # as if killed before that
    perplexity_over_depths(*asked, partial=Partial(tmp_path, {"a": 1}))
    read.clear()
    assert perplexity_over_depths(*asked, partial=Partial(tmp_path, {"a": 1})) == undisturbed
    assert read == []
    file = Partial(tmp_path, {"a": 1}).file
    file.write_text(file.read_text().replace('"batches": 5', '"batches": 4'))
    assert perplexity_over_depths(*asked, partial=Partial(tmp_path, {"a": 1})) == undisturbed
    assert len(read) == 5
