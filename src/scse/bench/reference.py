"""The yardstick: the paper's listing in plain eager PyTorch, with all logits at once. Obvious, not fast."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scse.config import Shape


class PlainBlock(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        d = shape.width
        self.heads, self.dropout = shape.heads, shape.dropout
        self.norm1, self.norm2 = nn.RMSNorm(d, eps=shape.norm_eps), nn.RMSNorm(d, eps=shape.norm_eps)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(d, shape.ff_width, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.ff_width, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, d = x.shape
        y = self.norm1(x)
        q, k, v = (f(y).view(batch, length, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, d)
        a = F.dropout(self.o(mixed), self.dropout, self.training)
        y = self.norm2(x + a)
        update: Tensor = a + F.dropout(self.down(F.silu(self.gate(y)) * self.up(y)), self.dropout, self.training)
        return update


class PlainSCSE(nn.Module):
    """h ← h* + Δ + mask·s·G(Δ), T times, then logits = E·RMSNorm(h) and the mean cross-entropy."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.core = PlainBlock(shape)
        self.anchor_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.init_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.norm = nn.RMSNorm(shape.width, eps=shape.norm_eps)

    def forward(self, ids: Tensor, targets: Tensor, loops: int) -> Tensor:
        e = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        e = F.dropout(e, self.shape.dropout, self.training)
        normalised = F.rms_norm(e, e.shape[-1:], eps=self.shape.norm_eps)
        anchor, h = e + 0.1 * self.anchor_proj(normalised), e + 0.1 * self.init_proj(normalised)
        for _ in range(loops):
            delta = h - anchor
            active = (delta.pow(2).sum(dim=(1, 2), keepdim=True) > 1e-8).to(delta.dtype)
            h = anchor + delta + 0.5 * self.core(delta) * active
        logits = F.linear(self.norm(h), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def take(self, weights: dict[str, Tensor]) -> None:
        """Use the weights of a `LoopedLM` of the scse family."""
        block = "recurrence.core.block."
        q, k, v = weights[block + "attention.qkv.weight"].chunk(3)
        gate, up = weights[block + "mlp.gate_up.weight"].chunk(2)
        pairs = {
            self.tokens: weights["tokens.weight"],
            self.positions: weights["positions.weight"],
            self.norm: weights["final_norm.weight"],
            self.anchor_proj: weights["recurrence.anchor.map.proj.weight"],
            self.init_proj: weights["recurrence.start.map.proj.weight"],
            self.core.norm1: weights[block + "attention_norm.weight"],
            self.core.norm2: weights[block + "mlp_norm.weight"],
            self.core.q: q,
            self.core.k: k,
            self.core.v: v,
            self.core.o: weights[block + "attention.out.weight"],
            self.core.gate: gate,
            self.core.up: up,
            self.core.down: weights[block + "mlp.down.weight"],
        }
        for module, value in pairs.items():
            module.weight.copy_(value)  # type: ignore[operator]
