"""Dropout keeps the right share, independently, without bias, and only in training."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from scse.nn.dropout import Dropout, random_words
from tinymodels import some_ids, tiny


@pytest.mark.parametrize("p", [0.1, 0.5, 0.013])
def test_the_share_dropped_is_p(p):
    torch.manual_seed(0)
    kept = int((Dropout(p)(torch.ones(1000, 997)) != 0).sum())
    assert stats.binomtest(kept, 997_000, 1 - p).pvalue > 1e-3


def test_expectation_and_gradient():
    torch.manual_seed(0)
    x = torch.randn(501, 401, requires_grad=True)
    y = Dropout(0.25)(x)
    kept = y != 0
    torch.testing.assert_close(y[kept], (x / 0.75)[kept])
    y.backward(torch.ones_like(y))
    torch.testing.assert_close(x.grad, kept / 0.75)


def test_words_are_uniform_in_every_position_of_a_draw():
    """Four words come from one draw; each of the four must cover the whole range."""
    torch.manual_seed(0)
    words = random_words(torch.Size([400_000])).view(-1, 4)
    for column in words.unbind(1):
        counts = torch.bincount((column.int() + 32768) // 4096, minlength=16)
        assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    correlation = torch.corrcoef(words.t().double()) - torch.eye(4)
    assert correlation.abs().max() < 0.01


def test_dropout_sits_on_embedding_attention_and_mlp(monkeypatch):
    """Where the protocol puts it: once on the embedding, twice in every application of the block."""
    seen = []
    original = Dropout.forward
    monkeypatch.setattr(Dropout, "forward", lambda self, x: seen.append(self.p) or original(self, x))
    model = tiny("scse", dtype=torch.float32).train()
    model(some_ids(), 3)
    assert seen == [0.1] * (1 + 2 * 3)
    torch.manual_seed(0)
    first = model(some_ids(), 3)
    assert not torch.equal(first, model(some_ids(), 3)), "training draws masks"
    block = model.recurrence.core.block
    for part in (block.attention, block.mlp):
        out = part(torch.randn(4, 16, 24))
        assert 0.05 < float((out == 0).double().mean()) < 0.15


def test_evaluation_and_p_zero_change_nothing():
    x = torch.randn(5, 7)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_the_mask_follows_torchs_seed():
    x = torch.ones(33, 5)
    torch.manual_seed(3)
    first = Dropout(0.5)(x)
    second = Dropout(0.5)(x)
    torch.manual_seed(3)
    assert torch.equal(Dropout(0.5)(x), first)
    assert not torch.equal(first, second)


def test_other_devices_draw_their_own_masks():
    """A device that only knows shapes stands for all that are not the CPU: nothing may be drawn there on the CPU."""
    found = Dropout(0.5)(torch.ones(33, 5, device="meta"))
    assert (found.shape, found.device.type) == ((33, 5), "meta")
