"""Causal attention over a short context, where a CPU multiplies in bfloat16.

Shapes: B batch, H heads, L positions, k channels of a head.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

LONGEST = 256  # positions; the products over all pairs, half of them masked, cost more beyond (docs/benchmarks.md)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(mask(q kᵀ / √k)) v [B, H, L, k]

    torch's fused kernel, but for gradients of short contexts in bfloat16 on a CPU: its backward pass multiplies tiles
    there at a seventh of the machine's rate. Who forbids fused kernels (forward-mode derivatives have none) gets
    torch's plain form.
    """
    if _pays(q, k, v) and torch.backends.cuda.flash_sdp_enabled():
        mixed: Tensor = _ShortContext.apply(q, k, v)
        return mixed
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _pays(q: Tensor, k: Tensor, v: Tensor) -> bool:
    rounded = q.dtype == k.dtype == v.dtype == torch.bfloat16
    short = rounded and q.device.type == "cpu" and q.shape[-2] <= LONGEST
    return short and torch.is_grad_enabled() and q.requires_grad


class _ShortContext(torch.autograd.Function):
    """Keeps q, k and v and forms the weights again in the backward pass, as the fused kernel does.

    Scores and softmax are in float32, the products with the weights in bfloat16. With P the weights, G the gradient of
    the output and D = P ⊙ (G vᵀ − Σ_j P_ij (G vᵀ)_ij), that of the scores:

        dv = Pᵀ G,   dq = D k / √k,   dk = Dᵀ q / √k
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.contiguous() for x in (q, k, v))
        ctx.save_for_backward(q, k, v)
        mixed: Tensor = _weights(q, k).to(v.dtype) @ v
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = ctx.saved_tensors
        (given,) = (g.contiguous() for g in gradients)
        weights = _weights(q, k)
        dv = weights.to(v.dtype).mT @ given
        pushed = (given @ v.mT).float()
        scores: Tensor = torch._softmax_backward_data(pushed, weights, -1, torch.float32)
        scores = scores.mul_(1 / math.sqrt(q.shape[-1])).to(q.dtype)
        return scores @ k, scores.mT @ q, dv


def _weights(q: Tensor, k: Tensor) -> Tensor:
    """softmax(mask(q kᵀ / √k)) in float32 [B, H, L, L]"""
    later = torch.full((q.shape[-2],) * 2, -math.inf, device=q.device).triu_(1)
    with torch.autocast(q.device.type, enabled=False):
        scores = torch.matmul(q.float(), k.float().mT)
    return scores.mul_(1 / math.sqrt(q.shape[-1])).add_(later).softmax(-1)
