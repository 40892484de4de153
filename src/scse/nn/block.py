"""The Transformer block as an update: what it adds to the state, without the outer residual."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from scse.config import Shape
from scse.nn.attention import CausalSelfAttention, Past
from scse.nn.dropout import Dropout
from scse.nn.norm import RMSNorm


class SwiGLU(nn.Module):
    """SwiGLU(x) = W_down (silu(W_gate x) ⊙ W_up x), bias-free, dropout on the output."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_up = nn.Linear(shape.width, 2 * shape.ff_width, bias=False)
        self.down = nn.Linear(shape.ff_width, shape.width, bias=False)
        self.dropout = Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        output: Tensor = self.dropout(self.down(F.silu(gate) * up))
        return output


class Block(nn.Module):
    """B(x) = a + SwiGLU(RMSNorm(x + a)) with a = Attn(RMSNorm(x)).

    Every projection is bias-free, so B(0) = 0 bit for bit: the zero-preserving core G of the paper is this block.
    `loop` is the step t at which it is being applied, for hooks that want to know.
    """

    loop: int | None = None

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.width, shape.norm_eps)
        self.attention = CausalSelfAttention(shape)
        self.mlp_norm = RMSNorm(shape.width, shape.norm_eps)
        self.mlp = SwiGLU(shape)

    def forward(self, x: Tensor, past: Past | None = None) -> Tensor:
        a = self.attention(self.attention_norm(x), past)
        update: Tensor = a + self.mlp(self.mlp_norm(x + a))
        return update

    def remember(self, x: Tensor, past: Past) -> None:
        """Leave in the past what later positions need of x."""
        self.attention.remember(self.attention_norm(x), past)
