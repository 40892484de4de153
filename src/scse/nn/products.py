"""Matrix products for inference: by the fastest library, with weights rounded once, or laid out once as few rows are
multiplied fastest.

Shapes: N rows, i inputs, o outputs.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from scse.machine import processor_maker
from scse.precision import BFLOAT16, INT8

PAYS_FROM = 1 << 20  # multiplications; before fewer of them oneDNN takes longer to begin
WEIGHT_LEVELS, ROW_LEVELS = 127, 63
FEW_ROWS = 64
LEAST_WEIGHTS = 1 << 20  # a smaller matrix is multiplied as fast without
_ENGINE = "fbgemm"


class Linear(nn.Linear):
    """y = W x + b, multiplied as `product` does."""

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight, self.bias)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b, in float32 and without derivatives by oneDNN where that is the faster library."""
    if by_onednn(x, weight):
        found = onednn_product(x, weight)
        return found if bias is None else found + bias
    return F.linear(x, weight, bias)


def by_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether `product` is oneDNN's: of several rows, where it pays."""
    if not (_is_plain(x, weight) and weight.dim() == 2 and x.shape[-1:] == weight.shape[1:]):
        return False
    return x.numel() > x.shape[-1] and x.numel() * weight.shape[0] >= PAYS_FROM and onednn_is_faster()


@cache
def onednn_is_faster() -> bool:
    """MKL, with which torch multiplies in float32, makes no use of AVX-512 on processors of AMD; oneDNN does."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512" and torch.backends.mkl.is_available()
    return wide and processor_maker() == "AuthenticAMD" and _packs(torch.float32)


def _is_plain(*operands: Tensor) -> bool:
    """Tensors of float32 on a processor and no more than that: nobody records, compiles or counts what is done with
    them, or asks for derivatives, which oneDNN's products lack without saying so."""
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or not torch.backends.mkldnn.enabled:
        return False
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() or torch._C._len_torch_dispatch_stack():
        return False
    return forward_ad._current_level < 0 and all(map(_is_of_float32, operands))


def _is_of_float32(x: Tensor) -> bool:
    if type(x) not in (Tensor, nn.Parameter) or torch._C._functorch.is_functorch_wrapped_tensor(x):
        return False
    return x.dtype == torch.float32 and x.device.type == "cpu" and x.layout == torch.strided


class RoundedLinear(nn.Module):
    """A bias-free linear map whose weights were rounded for good: it can no longer be trained."""

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self._packed: Any = None


class BFloat16Linear(RoundedLinear):
    """y = bf16(W) bf16(x), added up in float32, rounded once more and returned in the type of x.

    Where oneDNN multiplies in bfloat16, the weights lie in its blocks: left as they are, every product would begin
    with laying them out.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__(weight.detach().to(torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        rounded = x.to(torch.bfloat16)
        if x.device.type != "cpu" or not _packs(torch.bfloat16):
            return F.linear(rounded, self.weight).to(x.dtype)
        if self._packed is None:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.contiguous(), FEW_ROWS // 4)
        return onednn_product(rounded, self._packed).to(x.dtype)


class Int8Linear(RoundedLinear):
    """y_no = s_o·r_n·Σ_i w_oi q_ni, integers w = round(W/s) in ±127, q = round(x/r) in ±63, r_n = max_i|x_ni|/63.

    Each output has its own scale and so has each row, which makes a row's answer independent of the other rows. Zero
    gives exactly zero. The seven bits of q are what processors without special units add up without overflow. Where
    torch has no kernel for it, the same integers are multiplied as floats.
    """

    scale: Tensor

    def __init__(self, weight: Tensor) -> None:
        weight = weight.detach()
        scale = (weight.abs().amax(1) / WEIGHT_LEVELS).clamp_min(torch.finfo(weight.dtype).tiny)
        super().__init__((weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        step = torch.linalg.vector_norm(x, torch.inf, dim=-1, keepdim=True).mul_(1 / ROW_LEVELS)
        step = step.clamp_min_(torch.finfo(x.dtype).tiny)
        if x.dtype == torch.float32 and x.device.type == "cpu" and has_int8_kernel():
            product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
            found: Tensor = product(torch.atleast_2d(x / step), 1.0, ROW_LEVELS + 1, self._laid_out())
            return found.view(*x.shape[:-1], -1).mul_(step)
        return F.linear((x / step).round_(), self.weight.to(x.dtype)).mul_(self.scale.to(x.dtype)).mul_(step)

    def _laid_out(self) -> Any:
        if self._packed is None:
            torch.backends.quantized.engine, before = _ENGINE, torch.backends.quantized.engine
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch means to remove such tensors one day
                zeros = torch.zeros(len(self.scale), dtype=torch.long)
                made = torch._make_per_channel_quantized_tensor(self.weight, self.scale.double(), zeros, 0)
                self._packed = torch.ops.quantized.linear_prepack(made, None)
            torch.backends.quantized.engine = before
        return self._packed


ROUNDED: dict[str, type[RoundedLinear]] = {BFLOAT16: BFloat16Linear, INT8: Int8Linear}


@cache
def has_int8_kernel() -> bool:
    """Whether this build of torch multiplies such integers on this processor."""
    return _ENGINE in torch.backends.quantized.supported_engines and hasattr(
        torch.ops.quantized, "linear_with_input_q_dq_qweight_dq_output_fp32"
    )


def turn(part: nn.Module) -> None:
    """Let the float32 matrices of a processor's linear maps lie column by column; their shapes and numbers stay.

    A product with some 4 to 32 rows then reads them in the order in which it adds, which can take half the time.
    """
    for linear in part.modules():
        if type(linear) not in (nn.Linear, Linear):  # others form their products in ways of their own
            continue
        weight = linear.weight
        if weight.device.type == "cpu" and weight.dtype == torch.float32:
            weight.data = weight.detach().t().contiguous().t()


def last_outputs(linear: nn.Module, x: Tensor, begin: int) -> Tensor:
    """The outputs of a bias-free linear map from the `begin`-th on."""
    if isinstance(linear, nn.Linear):
        return product(x, linear.weight[begin:])
    found: Tensor = linear(x)
    return found[..., begin:]


def of_part(linear: nn.Module, x: Tensor, begin: int, inputs: int) -> Tensor:
    """The outputs of a bias-free linear map of so many inputs, where x are those from the `begin`-th on and all others
    are 0."""
    if isinstance(linear, nn.Linear):
        return product(x, linear.weight[:, begin : begin + x.shape[-1]])
    found: Tensor = linear(F.pad(x, (begin, inputs - begin - x.shape[-1])))  # it may be more than its weights
    return found


def packed(weight: Tensor) -> Tensor | None:
    """A large float32 matrix as oneDNN multiplies it fastest with few rows; None where that does not apply.

    `torch.compile` does the same.
    """
    here = weight.device.type == "cpu" and weight.dtype == torch.float32
    if not here or weight.numel() < LEAST_WEIGHTS or not _packs(weight.dtype):
        return None
    found: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), FEW_ROWS // 4)
    return found


def onednn_product(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ by oneDNN, for a W that may be packed."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return found


@cache
def _packs(dtype: torch.dtype) -> bool:
    """Whether this build of torch lays weights out in blocks, and this processor multiplies them in this type."""
    try:
        zeros = torch.zeros(16, 16, dtype=dtype)
        onednn_product(zeros, torch.ops.mkldnn._reorder_linear_weight(zeros))
    except (AttributeError, RuntimeError):
        return False
    return True


class FewRows:
    """x Wᵀ for few rows x and many outputs, with copies of W laid out when they are first needed.

    With one row the time is that of reading W, shortest along the rows of Wᵀ; with some, W is packed in blocks.
    A copy is made anew when the weights have changed. In every other case it is `product`.
    """

    def __init__(self) -> None:
        self._of: tuple[int, int] | None = None
        self._turned: Tensor | None = None
        self._packed: Tensor | None = None

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        rows = x.numel() // x.shape[-1]
        if not self._applies(x, weight) or rows > FEW_ROWS:
            return product(x, weight)
        stands = weight.data_ptr(), weight._version
        if self._of != stands:
            self._of, self._turned, self._packed = stands, None, None
        if rows == 1:
            if self._turned is None:
                self._turned = weight.detach().t().contiguous()
            return x @ self._turned
        if self._packed is None:
            self._packed = packed(weight)
        assert self._packed is not None, "it applies"
        return onednn_product(x, self._packed)

    @staticmethod
    def _applies(x: Tensor, weight: Tensor) -> bool:
        large = weight.numel() >= LEAST_WEIGHTS
        return large and _is_plain(x, weight) and not weight.is_inference() and _packs(weight.dtype)
