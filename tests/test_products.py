"""Products for inference: 8 bits within their bound, zero exactly zero, and layouts that change no answer."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from scse.generation import Depth, KVCache, settle
from scse.nn import products
from scse.nn.loss import token_nll
from scse.nn.products import (
    FEW_ROWS,
    LEAST_WEIGHTS,
    ROUNDED,
    BFloat16Linear,
    FewRows,
    Int8Linear,
    Linear,
    last_outputs,
    of_part,
    product,
)
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


@pytest.fixture
def onednn(monkeypatch):
    """Products by oneDNN however small they are and whoever made the processor; a list that grows with each."""
    if not products._packs(torch.float32):
        pytest.skip("this build of torch has no oneDNN for these products")
    taken: list[int] = []
    monkeypatch.setattr(products, "onednn_is_faster", lambda: bool(taken.append(1)) or True)
    monkeypatch.setattr(products, "PAYS_FROM", 0)
    return taken


@torch.no_grad()
@pytest.mark.parametrize("rows", [(2,), (3, 5), (70,), (2, 300)])
def test_onednn_multiplies_as_torch_does(onednn, rows):
    weight, x, bias = drawn(48, 40), drawn(*rows, 40, seed=1), drawn(48, seed=2)
    wide = drawn(48, 80, seed=3)
    for matrix in (weight, weight.t().contiguous().t(), weight[10:], wide[:, :40], wide[:, 40:]):
        torch.testing.assert_close(product(x, matrix), F.linear(x, matrix), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(product(x, weight, bias), F.linear(x, weight, bias), rtol=1e-5, atol=1e-5)
    assert len(onednn) == 6
    assert (product(torch.zeros(4, 40), weight) == 0).all()
    targets = torch.arange(7)
    expected = F.cross_entropy(x.reshape(-1, 40)[:2] @ weight.t(), targets[:2], reduction="none")
    torch.testing.assert_close(token_nll(x.reshape(-1, 40)[:2], weight, targets[:2]), expected, rtol=1e-5, atol=1e-5)


def test_onednn_is_left_aside_where_derivatives_are_asked_for(onednn):
    linear, x, v = Linear(40, 48), drawn(6, 40), drawn(6, 40, seed=1)
    exact = v @ linear.weight.t()
    linear(x).sum().backward()
    assert linear.weight.grad is not None
    with torch.no_grad():
        torch.testing.assert_close(torch.func.jvp(linear, (x,), (v,))[1], exact)
        torch.testing.assert_close(torch.func.vmap(linear)(x[:, None])[:, 0], linear.bias + x @ linear.weight.t())
        pulled = torch.func.vjp(linear, x)[1](torch.ones(6, 48))[0]
        torch.testing.assert_close(pulled, linear.weight.sum(0).expand(6, -1))
        with forward_ad.dual_level():
            pushed = forward_ad.unpack_dual(linear(forward_ad.make_dual(x, v))).tangent
        assert pushed is not None
        torch.testing.assert_close(pushed, exact)
        assert not onednn
        linear(x)
    assert len(onednn) == 1


@torch.no_grad()
def test_onednn_is_left_aside_for_whoever_looks_on_or_switches_it_off(onednn):
    linear, x = Linear(40, 48), drawn(6, 40)
    exact = F.linear(x, linear.weight, linear.bias)
    torch.testing.assert_close(torch.jit.trace(linear, (x,), check_trace=False)(x), exact)
    torch.testing.assert_close(torch.fx.symbolic_trace(linear)(x), exact)
    with FlopCounterMode(display=False) as counter:
        linear(x)
    assert counter.get_total_flops() == 2 * 6 * 40 * 48
    torch.backends.mkldnn.set_flags(False)
    try:
        linear(x)
    finally:
        torch.backends.mkldnn.set_flags(True)
    torch.testing.assert_close(product(x, linear.weight.detach().to_sparse()), x @ linear.weight.t())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        linear(drawn(6, 41))
    assert not onednn
    for bias in (drawn(96)[::2], drawn(48, 4)[:, 1]):
        torch.testing.assert_close(product(x, linear.weight, bias), F.linear(x, linear.weight, bias))
    assert len(onednn) == 2


def test_a_part_of_the_inputs_goes_through_whatever_stands_for_the_map():
    linear, x = nn.Linear(12, 5, bias=False), drawn(3, 4)
    other = nn.Sequential(linear)
    for begin in (0, 4, 8):
        expected = x @ linear.weight[:, begin : begin + 4].t()
        torch.testing.assert_close(of_part(linear, x, begin, 12), expected)
        torch.testing.assert_close(of_part(other, x, begin, 12), expected)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_every_family_is_itself_with_products_of_onednn(name, onednn, monkeypatch):
    model, ids = tiny(name, dtype=torch.float32, spread=0.05), some_ids()
    found, losses = model(ids, 3), model.token_nll(model.hidden(ids, 3), ids)
    assert onednn
    monkeypatch.setattr(products, "onednn_is_faster", lambda: False)
    torch.testing.assert_close(found, model(ids, 3), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(losses, model.token_nll(model.hidden(ids, 3), ids), rtol=1e-4, atol=1e-5)


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
