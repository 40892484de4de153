"""Products for inference: 8 bits within their bound, zero exactly zero, and layouts that change no answer."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from scse.generation import Depth, KVCache, settle
from scse.nn import products
from scse.nn.products import FEW_ROWS, LEAST_WEIGHTS, ROUNDED, BFloat16Linear, FewRows, Int8Linear, last_outputs
from scse.persistence import load_model, save_model
from scse.recurrence import deviation_map
from tinymodels import NAMES, SHAPES, some_ids, tiny


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=["kernel", "plain"])
def either(request, monkeypatch):
    """With torch's kernel where it has one, and without."""
    if request.param == "plain":
        monkeypatch.setattr(products, "has_int8_kernel", lambda: False)


@torch.no_grad()
def test_8_bits_are_within_half_a_step_of_each_number(either):
    weight, x = drawn(40, 96), drawn(7, 96, seed=1) * torch.logspace(-3, 3, 7)[:, None]
    x[3, 5] = 400.0  # one large number makes the steps of its row large, and of no other
    found = Int8Linear(weight)(x)
    of_weight, of_row = weight.abs().amax(1) / 127, x.abs().amax(1) / 63
    bound = x.abs().sum(1)[:, None] * of_weight / 2 + of_row[:, None] * weight.abs().sum(1) / 2
    bound += 96 * of_row[:, None] * of_weight / 4
    assert ((found - x @ weight.t()).abs() <= 1.001 * bound).all()
    assert torch.linalg.vector_norm(found - x @ weight.t()) < 0.1 * torch.linalg.vector_norm(x @ weight.t())


@torch.no_grad()
def test_8_bits_keep_zero_and_every_row_to_itself(either):
    linear, x = Int8Linear(drawn(33, 64)), drawn(5, 64, seed=1)
    x[2] = 0
    together = linear(x)
    assert (together[2] == 0).all()
    for row in range(5):
        assert torch.equal(linear(x[row : row + 1])[0], together[row])
        torch.testing.assert_close(linear(1000 * x[row]), 1000 * together[row])
    assert torch.equal(last_outputs(linear, x, 10), together[:, 10:])
    assert not linear(torch.full((1, 64), torch.nan)).isfinite().any()


@torch.no_grad()
def test_torchs_kernel_and_plain_floats_multiply_the_same_integers(monkeypatch):
    linear, x = Int8Linear(drawn(50, 300)), drawn(9, 300, seed=1)
    fast = linear(x)
    monkeypatch.setattr(products, "has_int8_kernel", lambda: False)
    torch.testing.assert_close(fast, linear(x), rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 5, 100])
def test_a_bfloat16_product_rounds_both_factors_and_the_result(rows):
    weight, x = drawn(48, 300), drawn(rows, 300, seed=1)
    found = BFloat16Linear(weight)(x)
    rounded = x.bfloat16().double() @ weight.bfloat16().double().T
    assert found.dtype == x.dtype
    torch.testing.assert_close(found.double(), rounded, rtol=2**-8, atol=2**-8)


def test_a_layout_for_few_rows_changes_no_answer():
    weight, layout = drawn(LEAST_WEIGHTS // 48 + 1, 48), FewRows()
    for rows in (1, 2, FEW_ROWS, FEW_ROWS + 1, 1):
        x = drawn(rows, 48, seed=rows)
        torch.testing.assert_close(layout.product(x, weight), F.linear(x, weight), rtol=1e-4, atol=1e-4)
        weight.add_(0.1)  # a copy of weights that have changed is of no use


def test_a_layout_leaves_gradients_alone():
    weight = drawn(LEAST_WEIGHTS // 8, 8).requires_grad_()
    FewRows().product(drawn(2, 8), weight).sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_a_model_laid_out_for_few_rows_has_the_same_weights_and_answers(shape, tmp_path):
    model, ids = tiny("scse", dtype=torch.float32, spread=0.05, shape=SHAPES[shape]), some_ids()
    exact, weights = model(ids, 3), {name: weight.clone() for name, weight in model.state_dict().items()}
    model.lay_out()
    turned = [module.weight for module in model.recurrence.modules() if isinstance(module, nn.Linear)]
    assert turned
    assert all(weight.t().is_contiguous() for weight in turned)
    torch.testing.assert_close(model.state_dict(), weights, rtol=0, atol=0)
    torch.testing.assert_close(model(ids, 3), exact, rtol=1e-4, atol=1e-5)
    save_model(model, tmp_path)  # and in a file they lie as always
    torch.testing.assert_close(load_model(tmp_path).state_dict(), weights, rtol=0, atol=0)


@pytest.mark.parametrize("precision", ROUNDED)
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_every_family_with_rounded_weights_is_near_itself(name, precision):
    model, ids = tiny(name, dtype=torch.float32, spread=0.05), some_ids()
    exact, targets = model(ids, 3), ids.roll(-1, 1)
    losses = model.token_nll(model.hidden(ids, 3), targets)
    model.lay_out(precision)
    model.lay_out(precision)  # a second time changes nothing
    found = model(ids, 3)
    assert 0 < torch.linalg.vector_norm(found - exact) < 0.1 * torch.linalg.vector_norm(exact)
    torch.testing.assert_close(model.token_nll(model.hidden(ids, 3), targets), losses, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("precision", ROUNDED)
@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_rounded_weights_under_a_cache(shape, precision):
    model, ids = tiny("scse", dtype=torch.float32, spread=0.05, shape=SHAPES[shape]), some_ids()
    model.lay_out(precision)
    whole, cache = model(ids, 3), KVCache(model, len(ids), 3)
    parts = [settle(model, part, cache.append(part.shape[1]), Depth(3)) for part in ids.split([4, 1, 6], 1)]
    cached = model.head(torch.cat([part.outputs for part in parts], 1))
    # Not to rounding: a number in the middle between two steps may fall to either.
    assert torch.linalg.vector_norm(cached - whole) < 0.02 * torch.linalg.vector_norm(whole)
    cache = KVCache(model, len(ids), 5)
    assert settle(model, ids, cache.append(ids.shape[1]), Depth(5, threshold=0.05)).taken.max() <= 5


@pytest.mark.parametrize("precision", ROUNDED)
@pytest.mark.parametrize("name", ["scse", "sc-cond", "forcing-subtraction"])
@torch.no_grad()
def test_the_anchor_stays_exactly_where_it_is_with_rounded_weights(name, precision):
    model = tiny(name, dtype=torch.float32)
    model.lay_out(precision)
    frame = model.recurrence.begin(model.embed(some_ids()))
    assert (deviation_map(model.recurrence, 0, torch.zeros_like(frame.embedding), frame) == 0).all()
