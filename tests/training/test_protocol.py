"""The trainer does what the paper's protocol says, checked against a plain loop and closed forms."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from runs import config_for, final_tensors, options, run
from scse import LoopedLM
from scse.config import PROTOCOLS, assemble, data_config, protocol
from scse.data import open_corpus
from scse.errors import UserError
from scse.problems import PROBLEMS
from scse.training.batches import TextBatches
from scse.training.optimiser import learning_rate, resolve_precision
from scse.training.streams import dropout_seed, initialisation_seed, loop_depths


def plain_training(config, tokens):
    """The protocol without any of the trainer's machinery: full logits, one process, ordinary AdamW."""
    torch.manual_seed(123)
    model = LoopedLM(config.model, seed=initialisation_seed(config.seed)).train()
    decayed = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
    others = [p for p in model.parameters() if p.requires_grad and p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95))
    batches = TextBatches(tokens, config.model.shape.context, config.batch, config.data_seed)
    for step in range(config.steps):
        for group in optimiser.param_groups:
            warm = (step + 1) / config.warmup
            done = (step - config.warmup) / (config.steps - config.warmup)
            group["lr"] = config.lr * (warm if warm <= 1 else 0.5 + 0.5 * math.cos(math.pi * done))
        rows = batches.rows(step)
        depth = config.model.options.get("layers") or loop_depths(config, step)
        logits = model(rows[:, :-1], depth)
        optimiser.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimiser.step()
    return model


@pytest.mark.parametrize("family", ["scse", "tuned-adapter", "scse-random", "unshared-2"])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_trainer_equals_a_plain_loop(corpus, tmp_path, family, micro_batches):
    changes = {"dropout": 0.0, "micro_batches": micro_batches}
    config = config_for(corpus, family, **changes)
    tokens = open_corpus(data_config(config, options(tmp_path / "cache")), progress=False).split("train").tokens
    expected = plain_training(config, tokens).state_dict()
    run(corpus, tmp_path / "out", family, **changes)
    weights, _ = final_tensors(tmp_path / "out")
    assert weights.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(weights[name], expected[name], rtol=1e-4, atol=2e-6)


def test_recompute_trains_the_same_weights(corpus, tmp_path):
    """Dropout included: the second forward pass draws the masks of the first."""
    run(corpus, tmp_path / "plain", context=16)
    run(corpus, tmp_path / "recomputed", run_options={"recompute": True})
    for left, right in zip(final_tensors(tmp_path / "plain"), final_tensors(tmp_path / "recomputed"), strict=True):
        assert all(torch.equal(left[name], right[name]) for name in left)


def test_training_learns(corpus, tmp_path):
    outcome = run(corpus, tmp_path / "out", steps=60, warmup=5)
    assert outcome.validation_ppl < 60, "299 tokens at random would give 299, single letters about 20"


def test_frozen_anchor_stays_as_drawn(corpus, tmp_path):
    run(corpus, tmp_path / "out", "scse-random")
    weights, moments = final_tensors(tmp_path / "out")
    drawn = LoopedLM(config_for(corpus, "scse-random").model, seed=initialisation_seed(0)).state_dict()
    name = "recurrence.anchor.map.proj.weight"
    assert torch.equal(weights[name], drawn[name])
    assert f"exp_avg.{name}" not in moments
    assert not torch.equal(weights["tokens.weight"], drawn["tokens.weight"])


class TestBatches:
    tokens = np.arange(1000, dtype=np.uint16)

    def test_an_epoch_visits_every_window_once(self):
        source = TextBatches(self.tokens, context=16, batch=1, seed=3)
        epoch = torch.cat([source.rows(step) for step in range(source.windows)])
        targets = epoch[:, 1:].flatten()
        assert source.windows == (1000 - 16) // 16
        assert len(set(targets.tolist())) == targets.numel() == source.windows * 16
        assert torch.equal(epoch[:, 1:], epoch[:, :-1] + 1), "each row is a contiguous window"

    def test_rows_depend_on_seed_and_step_alone(self):
        one, two, other = (TextBatches(self.tokens, 16, 4, seed) for seed in (3, 3, 4))
        two.rows(99)
        assert torch.equal(one.rows(40), two.rows(40))
        assert not torch.equal(one.rows(40), other.rows(40))
        assert not torch.equal(one.rows(40), one.rows(41))

    def test_epochs_differ_in_order_and_offset(self):
        source = TextBatches(self.tokens, 16, batch=1, seed=0)
        first = [int(source.rows(step)[0, 0]) for step in range(source.windows)]
        second = [int(source.rows(source.windows + step)[0, 0]) for step in range(source.windows)]
        assert sorted(first) != first != second
        assert {start % 16 for start in first} != {start % 16 for start in second}

    def test_the_shortest_possible_corpus(self):
        assert TextBatches(self.tokens[:32], 16, 2, 0).rows(0).shape == (2, 17)
        with pytest.raises(UserError, match="too few for a context of 16; at least 32 are needed"):
            TextBatches(self.tokens[:31], 16, 2, 0)


class TestStreams:
    def test_streams_are_separate(self):
        assert len({initialisation_seed(0), dropout_seed(0, 0, 0), dropout_seed(0, 0, 1), dropout_seed(0, 1, 0)}) == 4

    def test_the_data_seed_can_be_held_while_the_others_move(self, corpus):
        config = config_for(corpus, seed=4, data_seed=0)
        assert (config.seed, config.data_seed) == (4, 0)
        assert config_for(corpus, seed=4).data_seed == 4


def test_learning_rate_schedule(corpus):
    config = config_for(corpus, steps=100, warmup=10, lr=1.0)
    rates = [learning_rate(config, step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (k + 1) for k in range(10)])
    assert rates[10] == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.5)
    assert rates[99] == pytest.approx(0.5 * (1 + math.cos(math.pi * 89 / 90)))
    assert all(a >= b for a, b in itertools.pairwise(rates[9:]))


PAPER_PROTOCOLS = {
    # protocol: (width, context, tokens per step, steps, learning rate)
    "wikitext-2": (384, 128, 4096, 1200, 3e-4),
    "wikitext-103": (384, 128, 4096, 5000, 3e-4),
    "wikitext-103-50m": (768, 128, 4096, 5000, 3e-4),
    "wikitext-103-96m": (1280, 128, 4096, 5000, 3e-4),
    "wikitext-103-96m-10k": (1280, 128, 4096, 10_000, 3e-4),
    "wikitext-103-ctx512": (384, 512, 4096, 5000, 3e-4),
    "wikitext-103-ctx1024": (384, 1024, 4096, 5000, 3e-4),
    "openwebtext": (384, 128, 4096, 5000, 3e-4),
    "c4": (384, 128, 4096, 5000, 3e-4),
    "c4-137m": (1664, 128, 4096, 5000, 2.5e-4),
    "c4-137m-50k": (1664, 128, 4096, 50_000, 2.5e-4),
}


@pytest.mark.parametrize("name", PAPER_PROTOCOLS)
def test_protocols_of_the_paper(name):
    config = assemble("scse", protocol(name))
    shape = config.model.shape
    found = (shape.width, shape.context, config.tokens_per_step, config.steps, config.lr)
    assert found == PAPER_PROTOCOLS[name]
    assert (config.warmup, config.weight_decay, config.clip, config.max_loops) == (500, 0.1, 1.0, 8)
    assert (config.beta1, config.beta2, shape.dropout) == (0.9, 0.95, 0.1)
    assert config.tokenizer == "gpt2"
    assert shape.vocabulary == 50_257


def test_every_protocol_is_covered_above():
    assert set(PAPER_PROTOCOLS) | {"mini", "deep", *PROBLEMS.names()} == set(PROTOCOLS)
    assert assemble("scse", protocol("mini")).model.shape.vocabulary == 4096


def test_the_deep_protocol_is_the_mini_one_trained_for_depth_and_longer():
    mini, deep = (assemble("scse", protocol(name)) for name in ("mini", "deep"))
    assert deep.model == mini.model
    assert (deep.depths, deep.max_loops, deep.backprop, deep.objective) == ("log-uniform", 32, 8, "last")
    plain = {"depths": "uniform:8", "backprop": 0, "steps": mini.steps}
    assert assemble("scse", {**protocol("deep"), **plain}) == mini, "a user can undo every part"
    other = assemble("looped", {**protocol("deep"), "scale": "22m", "data": "wikitext-2", "depths": "poisson:4"})
    assert (other.model.shape.width, other.depths, other.max_loops, other.backprop) == (384, "poisson", 4, 8)


def test_deep_depths_cost_few_more_applications_than_the_papers():
    """Forward and backward count as three forward passes; loops before the last `backprop` as one."""
    deep = assemble("scse", protocol("deep"))
    chances = np.array([math.log1p(1 / t) for t in range(1, deep.max_loops + 1)]) / math.log(deep.max_loops + 1)
    loops = np.arange(1, deep.max_loops + 1)
    passes = 3 * np.minimum(loops, deep.backprop) + np.maximum(loops - deep.backprop, 0)
    assert chances.sum() == pytest.approx(1)
    assert chances @ loops == pytest.approx(deep.sampler.mean)
    assert chances @ passes < 1.4 * 3 * assemble("scse", protocol("mini")).sampler.mean


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 5, "learning_rate": 1}, "unknown option 'learning_rate' of a run of 'scse'"),
        ({"steps": 5, "step_scal": 1}, "did you mean 'step_scale'?"),
        ({"steps": 5, "lr": "fast"}, "'lr' must be a finite number"),
        ({"steps": 5, "batch": 0}, "batch must be at least 1"),
        ({"steps": 0}, "steps must be at least 1"),
        ({}, "give --steps N or a --protocol"),
        ({"steps": 5, "batch": 9, "micro_batches": 2}, "micro_batches=2 does not divide the batch of 9"),
        ({"steps": 5, "beta1": 1.0}, "beta1 must be in"),
        ({"steps": 5, "clip": 0.0}, "clip must be positive"),
        ({"steps": 5, "precision": "float16"}, "unknown precision 'float16'; did you mean 'bfloat16'?"),
        ({"steps": 5, "tokenizer": "bpe"}, "valid: gpt2, or bpe-N"),
        ({"steps": 5, "seed": -1}, "seed must not be negative"),
    ],
)
def test_impossible_settings(settings, message):
    with pytest.raises(UserError) as caught:
        assemble("scse", settings)
    assert message in str(caught.value)


def test_unknown_protocol():
    with pytest.raises(UserError, match="did you mean 'wikitext-103'"):
        protocol("wikitext103")


def test_precision_is_resolved_by_the_hardware(monkeypatch):
    cpu = torch.device("cpu")
    monkeypatch.delenv("SCSE_PRECISION", raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    for native in (True, False):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda answer=native: answer)
        assert resolve_precision("auto", cpu) == ("bfloat16" if native else "float32")
    assert resolve_precision("bfloat16", cpu) == "bfloat16"
    for native in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda answer=native, **_: answer)
        assert resolve_precision("auto", torch.device("cuda")) == ("bfloat16" if native else "float32")


@pytest.mark.parametrize("chosen", ["float32", "bfloat16"])
def test_the_environment_decides_what_auto_means_and_nothing_else(monkeypatch, chosen):
    monkeypatch.setenv("SCSE_PRECISION", chosen)
    cpu = torch.device("cpu")
    assert [resolve_precision(asked, cpu) for asked in ("auto", "float32", "bfloat16")] == [
        chosen,
        "float32",
        "bfloat16",
    ]
    monkeypatch.setenv("SCSE_PRECISION", "bfloat32")
    with pytest.raises(UserError, match="unknown precision in SCSE_PRECISION 'bfloat32'; did you mean"):
        resolve_precision("auto", cpu)
    assert resolve_precision("float32", cpu) == "float32"
