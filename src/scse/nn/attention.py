"""Causal self-attention with bias-free projections.

Shapes: B batch, L positions, d width, H heads, k = d/H.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from scse.config import Shape
from scse.nn.dropout import Dropout


class CausalSelfAttention(nn.Module):
    """Attn(x) = W_o · softmax(mask(q kᵀ / √k)) v with (q, k, v) = W_qkv x, dropout on the output."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.dropout = Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        B, L, d = x.shape
        q, k, v = self.qkv(x).view(B, L, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        output: Tensor = self.dropout(self.out(mixed.transpose(1, 2).reshape(B, L, d)))
        return output
