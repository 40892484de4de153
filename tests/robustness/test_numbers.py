"""Numbers do not rot: a whole small run has the perplexity it always had, and seeds decide everything."""

from __future__ import annotations

import pytest
import torch

from runs import final_tensors, run, write_corpus
from scse.evaluation import perplexity_over_depths
from scse.runs import open_run

# Test perplexity at T = 1, 3, 8 after 60 steps, measured once; other versions of torch round differently.
PINNED = {"scse": [16.6144, 16.4239, 16.4349], "looped": [16.6623, 16.6099, 16.4738]}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("numbers") / "corpus")


@pytest.mark.parametrize("family", PINNED)
def test_a_small_run_has_the_perplexity_it_always_had(corpus, tmp_path, family):
    run(corpus, tmp_path / "run", family, steps=60)
    opened = open_run(tmp_path / "run")
    tokens = opened.corpus(None, None, str(corpus.parent / "cache"), progress=False).split("test").tokens
    found = [result.ppl for result in perplexity_over_depths(opened.model, tokens, [1, 3, 8])]
    assert found == pytest.approx(PINNED[family], rel=2e-3)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_seed_decides_every_bit(corpus, tmp_path, threads):
    torch.set_num_threads(threads)
    for name, seed in (("one", 0), ("again", 0), ("other", 1)):
        run(corpus, tmp_path / name, seed=seed, steps=3)
    one, again, other = (final_tensors(tmp_path / name)[0] for name in ("one", "again", "other"))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)
