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
