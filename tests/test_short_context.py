"""Attention over short contexts in bfloat16 against torch's plain form in float64, and when it is taken."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from scse.nn import short_context
from scse.nn.short_context import LONGEST, causal_attention
from tinymodels import some_ids, tiny


def heads(length: int = 12, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    """Queries, keys and values as the block makes them: views of one product [2, 3, L, 8]."""
    drawn = torch.randn(2, length, 72, generator=torch.Generator().manual_seed(length)).to(dtype)
    return [part.view(2, length, 3, 8).transpose(1, 2).requires_grad_() for part in drawn.split(24, dim=-1)]


@pytest.fixture
def taken(monkeypatch) -> list[int]:
    """The lengths for which our own form was taken."""
    seen: list[int] = []
    apply = short_context._ShortContext.apply
    monkeypatch.setattr(
        short_context._ShortContext, "apply", lambda q, k, v: seen.append(q.shape[-2]) or apply(q, k, v)
    )
    return seen


@pytest.mark.parametrize("length", [1, 2, 12, 64])
def test_it_is_attention_and_so_are_its_gradients(length, taken):
    ours, exact = heads(length), [x.detach().double().requires_grad_() for x in heads(length)]
    found, wanted = causal_attention(*ours), F.scaled_dot_product_attention(*exact, is_causal=True)
    assert taken == [length]
    assert found.dtype == torch.bfloat16
    given = torch.randn(found.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    found.backward(given)
    wanted.backward(given.double())
    for name, near, true in [("output", found, wanted)] + [
        (name, a.grad, b.grad) for name, a, b in zip("qkv", ours, exact, strict=True)
    ]:
        error = torch.linalg.vector_norm(near.double() - true)
        assert error <= 0.02 * torch.linalg.vector_norm(true) + 1e-6, name


def test_no_position_sees_a_later_one():
    q, k, v = heads()
    before = causal_attention(q, k, v)[:, :, :5]
    later = [torch.cat([x[:, :, :5], 100 * x[:, :, 5:]], 2) for x in (q, k, v)]
    torch.testing.assert_close(causal_attention(*later)[:, :, :5], before, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("case", ["float32", "no gradients", "long", "forward mode"])
def test_otherwise_torch_decides(case, taken):
    q, k, v = heads(LONGEST + 1 if case == "long" else 12, torch.float32 if case == "float32" else torch.bfloat16)
    with sdpa_kernel(SDPBackend.MATH) if case == "forward mode" else torch.set_grad_enabled(case != "no gradients"):
        causal_attention(q, k, v)
    assert taken == []


def test_a_training_step_in_bfloat16_takes_it_in_every_loop(taken):
    model, ids = tiny("scse", dtype=torch.float32), some_ids()
    exact = model.nll(ids[:, :-1], ids[:, 1:], 3)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.nll(ids[:, :-1], ids[:, 1:], 3)
    loss.backward()
    assert taken == 3 * [ids.shape[1] - 1]
    torch.testing.assert_close(loss, exact, rtol=0.02, atol=0)
