"""The chunked head equals the plain cross-entropy over full logits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from scse.nn.loss import head_nll, token_nll


def problem(tokens=37, width=16, vocabulary=211, dtype=torch.float64, spread=1.0):
    generator = torch.Generator().manual_seed(0)
    hidden = spread * torch.randn(tokens, width, generator=generator, dtype=dtype)
    weight = torch.randn(vocabulary, width, generator=generator, dtype=dtype)
    targets = torch.randint(0, vocabulary, (tokens,), generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), targets


def plain(hidden, weight, targets):
    return F.cross_entropy(hidden @ weight.t(), targets, reduction="sum")


@pytest.mark.parametrize("chunk", [1, 8, 37, 512])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_loss_and_gradients_equal_the_plain_ones(chunk, dtype, tolerance):
    hidden, weight, targets = problem(dtype=dtype)
    expected = plain(hidden, weight, targets)
    wanted = torch.autograd.grad(3.0 * expected, (hidden, weight))
    loss = head_nll(hidden, weight, targets, chunk)
    found = torch.autograd.grad(3.0 * loss, (hidden, weight))
    torch.testing.assert_close(loss, expected, rtol=tolerance, atol=0)
    for have, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(have, want, rtol=tolerance, atol=tolerance)


def test_gradients_by_finite_differences():
    hidden, weight, targets = problem(tokens=5, width=4, vocabulary=9)
    assert torch.autograd.gradcheck(lambda h, w: head_nll(h, w, targets, 2), (hidden, weight))


def test_a_second_derivative_is_refused_rather_than_wrong():
    hidden, weight, targets = problem(tokens=3, width=4, vocabulary=9)
    (gradient,) = torch.autograd.grad(head_nll(hidden, weight, targets), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match=r"does not require grad|once_differentiable"):
        torch.autograd.grad(gradient.pow(2).sum(), hidden)


def test_extreme_logits_stay_finite_and_exact():
    """A target of probability far below the smallest float still has its true loss."""
    hidden, weight, targets = problem(dtype=torch.float32, spread=100.0)
    expected = plain(hidden.double(), weight.double(), targets)
    assert expected / len(targets) > 200
    torch.testing.assert_close(head_nll(hidden, weight, targets, 8).double(), expected, rtol=1e-6, atol=0)


def test_shapes_and_no_grad():
    hidden, weight, targets = problem(tokens=24)
    per_token = token_nll(hidden, weight, targets, 7)
    torch.testing.assert_close(per_token, F.cross_entropy(hidden @ weight.t(), targets, reduction="none"))
    with torch.no_grad():
        total = head_nll(hidden.view(2, 12, -1), weight, targets.view(2, 12))
    torch.testing.assert_close(total, per_token.sum())


def test_only_the_weight_needs_a_gradient():
    hidden, weight, targets = problem()
    head_nll(hidden.detach(), weight, targets).backward()
    (expected,) = torch.autograd.grad(plain(hidden, weight, targets), weight)
    torch.testing.assert_close(weight.grad, expected)


@pytest.mark.parametrize("autocast", [False, True])
def test_softmax_and_sums_are_never_in_bfloat16(autocast):
    hidden, weight, targets = problem(tokens=400, dtype=torch.float32)
    low, table = (x.detach().bfloat16().requires_grad_() for x in (hidden, weight))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = head_nll(low, weight if autocast else table, targets, 64)
    assert loss.dtype == torch.float32
    logits = (low @ table.t()).float().detach()
    torch.testing.assert_close(loss, F.cross_entropy(logits, targets, reduction="sum"), rtol=1e-3, atol=0)
    (gradient,) = torch.autograd.grad(loss, low)
    wanted = (logits.softmax(1) - F.one_hot(targets, len(table))) @ table.float()
    assert (gradient - wanted).norm() < 2e-2 * wanted.norm()


def test_bfloat16_autocast_is_close():
    hidden, weight, targets = problem(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss = head_nll(hidden, weight, targets, 8)
    assert loss.dtype == torch.float32
    grads = torch.autograd.grad(loss, (hidden, weight))
    expected = plain(hidden, weight, targets)
    torch.testing.assert_close(loss, expected, rtol=1e-2, atol=0)
    for have, want in zip(grads, torch.autograd.grad(expected, (hidden, weight)), strict=True):
        assert (have - want).norm() < 2e-2 * want.norm()
