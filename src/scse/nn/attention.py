"""Causal self-attention with bias-free projections.

Shapes: B batch, L positions, d width, H heads, k = d/H.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scse.config import Shape
from scse.nn.dropout import Dropout


class Past(Protocol):
    """Keys and values of the positions before the ones at hand."""

    def put(self, k: Tensor, v: Tensor) -> None:
        """Add those of the new positions [B, H, L, k]."""
        ...

    def seen(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """All keys and values there are now, and which of them each new position may see (None: all)."""
        ...


class CausalSelfAttention(nn.Module):
    """Attn(x) = W_o · softmax(mask(q kᵀ / √k)) v with (q, k, v) = W_qkv x, dropout on the output.

    With a `past`, x holds the positions after it, and they attend to it as well.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.dropout = Dropout(shape.dropout)

    def forward(self, x: Tensor, past: Past | None = None) -> Tensor:
        B, L, d = x.shape
        q, k, v = self.qkv(x).view(B, L, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if past is None:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            past.put(k, v)
            k, v, visible = past.seen()
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        output: Tensor = self.dropout(self.out(mixed.transpose(1, 2).reshape(B, L, d)))
        return output

    def weights(self, x: Tensor) -> Tensor:
        """softmax(mask(q kᵀ / √k)) [B, H, L, L], for those who want to look: `forward` never holds it."""
        B, L, d = x.shape
        q, k, _ = self.qkv(x).view(B, L, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        later = torch.ones(L, L, dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(d // self.heads)
        weights: Tensor = scores.masked_fill(later, -math.inf).softmax(-1)
        return weights

    def remember(self, x: Tensor, past: Past) -> None:
        """Leave the keys and values of x in the past, and compute nothing else."""
        B, L, d = x.shape
        kv = F.linear(x, self.qkv.weight[d:]).view(B, L, 2, self.heads, d // self.heads)
        k, v = kv.permute(2, 0, 3, 1, 4)
        past.put(k, v)
