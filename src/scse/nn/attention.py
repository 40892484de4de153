"""Causal self-attention with bias-free projections.

Shapes: B batch, L positions, d width, H heads, K key and value heads, k = d/H.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scse.config.model import Shape
from scse.devices import wide
from scse.nn.dropout import Dropout
from scse.nn.norm import RMSNorm
from scse.nn.products import Linear, last_outputs
from scse.nn.short_context import causal_attention

GATING_CHANNELS = 32  # of a position, seen by the gates of its value embedding


class Past(Protocol):
    """Keys and values of the positions before the ones at hand."""

    @property
    def positions(self) -> Tensor:
        """Of the new tokens in their sequences [B, L]"""
        ...

    def put(self, k: Tensor, v: Tensor) -> None:
        """Add those of the new positions [B, K, L, k]."""
        ...

    def seen(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """All keys and values there are now, and which of them each new position may see (None: all)."""
        ...


class CausalSelfAttention(nn.Module):
    """Attn(x) = W_o · softmax(mask(q kᵀ / √k)) v with (q, k, v) = W_qkv x, dropout on the output.

    With `qk_bias` a learned bias is added to q and k, with `qk_norm` each of their heads then goes through an RMSNorm,
    and with rotary positions they are turned last. Where there are fewer key and value heads, neighbouring query
    heads share one. With a `past`, x holds the positions after it, and they attend to it as well.

    A `valued` one is given an embedding of each position's token, and v is W_v x + 2σ(W_g x) · embedding, with a gate
    for each value head that sees the first 32 channels of x.
    """

    def __init__(self, shape: Shape, valued: bool = False) -> None:
        super().__init__()
        self.shape = shape
        self.qkv = Linear(shape.width, shape.width + 2 * shape.kv_width, bias=False)
        self.out = Linear(shape.width, shape.width, bias=False)
        self.dropout = Dropout(shape.dropout)
        size, heads = shape.head_width, (shape.heads, shape.kv_heads or shape.heads)
        self.q_bias, self.k_bias = (
            nn.Parameter(torch.zeros(count, size)) if shape.qk_bias else None for count in heads
        )
        self.q_norm, self.k_norm = (RMSNorm(size, shape.norm_eps) if shape.qk_norm else None for _ in heads)
        self.gating = min(GATING_CHANNELS, shape.width)
        self.value_gate = Linear(self.gating, heads[1], bias=False) if valued else None

    def forward(self, x: Tensor, past: Past | None = None, embedded: Tensor | None = None) -> Tensor:
        B, L, d = x.shape
        q, k, v = self._qkv(x, past, embedded)
        if past is None:
            mixed = causal_attention(q, self._shared(k), self._shared(v))
        else:
            past.put(k, v)
            k, v, visible = past.seen()
            mixed = F.scaled_dot_product_attention(q, self._shared(k), self._shared(v), attn_mask=visible)
        output: Tensor = self.dropout(self.out(mixed.transpose(1, 2).reshape(B, L, d)))
        return output

    def weights(self, x: Tensor) -> Tensor:
        """softmax(mask(q kᵀ / √k)) [B, H, L, L], for those who want to look: `forward` never holds it."""
        q, k, _ = self._qkv(x, None, None)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ self._shared(k).transpose(-1, -2)) / math.sqrt(self.shape.head_width)
        weights: Tensor = scores.masked_fill(later, -math.inf).softmax(-1)
        return weights

    def remember(self, x: Tensor, past: Past, embedded: Tensor | None = None) -> None:
        """Leave the keys and values of x in the past, and compute nothing else."""
        k, v = last_outputs(self.qkv, x, x.shape[-1]).chunk(2, dim=-1)
        past.put(self._heads(k, past, self.k_bias, self.k_norm), self._values(x, v, embedded))

    def _qkv(self, x: Tensor, past: Past | None, embedded: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values by head [B, heads, L, k]"""
        q, k, v = self.qkv(x).split([x.shape[-1], self.shape.kv_width, self.shape.kv_width], dim=-1)
        queries = self._heads(q, past, self.q_bias, self.q_norm)
        return queries, self._heads(k, past, self.k_bias, self.k_norm), self._values(x, v, embedded)

    def _values(self, x: Tensor, v: Tensor, embedded: Tensor | None) -> Tensor:
        """Values by head, with the embedding of their tokens where the layer has one."""
        split = self._split(v)
        if self.value_gate is None or embedded is None:
            return split
        gate = 2 * torch.sigmoid(self.value_gate(x[..., : self.gating]))
        return split + gate.transpose(1, 2)[..., None] * self._split(embedded).to(split.dtype)

    def _split(self, x: Tensor) -> Tensor:
        """[B, L, heads·k] -> [B, heads, L, k]"""
        return x.view(*x.shape[:2], -1, self.shape.head_width).transpose(1, 2)

    def _heads(self, x: Tensor, past: Past | None, bias: Tensor | None, norm: RMSNorm | None) -> Tensor:
        """Queries or keys by head, with whatever the shape asks to be done to them."""
        x = self._split(x)
        if bias is not None:
            x = x + bias[:, None]
        if norm is not None:
            x = norm(x)
        if self.shape.positions == "rope":
            positions = torch.arange(x.shape[2], device=x.device) if past is None else past.positions
            x = rotate(x, positions, self.shape.rope_base)
        return x

    def _shared(self, x: Tensor) -> Tensor:
        """Every key or value head as often as query heads share it."""
        groups = self.shape.heads // x.shape[1]
        return x if groups == 1 else x.repeat_interleave(groups, dim=1)


def rotate(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """RoPE: channels i and i + k/2 of a head are turned by the angle position·base^(−2i/k).

    `positions` are [L], or [B, L] where rows differ. Angles are formed in float64 where the device has it, so that
    they are the same for a position wherever it stands in a batch and whatever the model's type.
    """
    half = x.shape[-1] // 2
    rates = base ** (-torch.arange(half, dtype=wide(x.device), device=x.device) / half)
    angles = positions[..., None] * rates
    if positions.dim() == 2:
        angles = angles[:, None]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.split(half, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
