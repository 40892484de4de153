"""Perplexity through a cache: the exact one changes nothing, the approximate ones do."""

from __future__ import annotations

import numpy as np
import pytest

from scse.evaluation import perplexity_over_depths
from scse.generation.quality import cached_perplexity
from tinymodels import TINY, tiny


def test_the_exact_cache_has_the_perplexity_of_fixed_depth(family):
    model = tiny(family, spread=0.1)
    tokens = np.random.default_rng(0).integers(0, TINY.vocabulary, 40).astype(np.uint16)
    (wanted,) = perplexity_over_depths(model, tokens, [3], batch=2)
    found = cached_perplexity(model, tokens, 3, "exact", 2, None)
    assert found.tokens == wanted.tokens
    assert found.nll == pytest.approx(wanted.nll, rel=1e-12)
    shared = cached_perplexity(model, tokens, 3, "shared", 2, None)
    still = family == "scse-initial"  # it never moves, so its loops are all alike
    assert (shared.nll == pytest.approx(wanted.nll, rel=1e-9)) == still
