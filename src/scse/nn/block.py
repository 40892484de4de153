"""The Transformer block as an update: what it adds to the state, without the outer residual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scse.config.model import Shape
from scse.nn.attention import CausalSelfAttention, Past
from scse.nn.dropout import Dropout
from scse.nn.norm import RMSNorm
from scse.nn.products import Linear, RoundedLinear


class SwiGLU(nn.Module):
    """SwiGLU(x) = W_down (silu(W_gate x) ⊙ W_up x), bias-free, dropout on the output."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_up = Linear(shape.width, 2 * shape.ff_width, bias=False)
        self.down = Linear(shape.ff_width, shape.width, bias=False)
        self.dropout = Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        output: Tensor = self.dropout(self.down(F.silu(gate) * up))
        return output


class SquaredReLU(nn.Module):
    """MLP(x) = W_down relu(W_up x)², bias-free, dropout on the output."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = Linear(shape.width, shape.ff_width, bias=False)
        self.down = Linear(shape.ff_width, shape.width, bias=False)
        self.dropout = Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.dropout(self.down(F.relu(self.up(x)).square()))
        return output


class Modulation(NamedTuple):
    """What a condition does to a block, each a vector of the model's width: scales of the two normalised inputs (by
    1 + scale) and gates on the two outputs."""

    attention_scale: Tensor
    attention_gate: Tensor
    mlp_scale: Tensor
    mlp_gate: Tensor


class Block(nn.Module):
    """B(x) = a + SwiGLU(RMSNorm(x + a)) with a = Attn(RMSNorm(x)).

    With the shape's `sandwich` each of the two outputs goes through another RMSNorm before it is added. With
    `stream_norm` it is the sum that does: with n = RMSNorm, y = n(x + Attn(n(x))) and B(x) = n(y + SwiGLU(n(y))) − x.

    Every projection is bias-free, so B(0) = 0 bit for bit: the zero-preserving core G of the paper is this block. A
    `valued` one is also given an embedding of each token for its values, and then B(0) need not be 0.
    `loop` is the step t at which it is being applied, for hooks that want to know.
    """

    loop: int | None = None

    def __init__(self, shape: Shape, valued: bool = False) -> None:
        super().__init__()
        self.valued = valued
        self.stream_norm = shape.stream_norm
        self.attention_norm = RMSNorm(shape.width, shape.norm_eps)
        self.attention = CausalSelfAttention(shape, valued)
        self.mlp_norm = RMSNorm(shape.width, shape.norm_eps)
        self.mlp = SwiGLU(shape) if shape.mlp == "swiglu" else SquaredReLU(shape)
        self.after_attention, self.after_mlp = (
            RMSNorm(shape.width, shape.norm_eps) if shape.sandwich else None for _ in range(2)
        )

    def forward(
        self,
        x: Tensor,
        past: Past | None = None,
        modulation: Modulation | None = None,
        embedded: Tensor | None = None,
    ) -> Tensor:
        a = self.attention(self._before_attention(x, modulation), past, embedded)
        if modulation is not None:
            a = modulation.attention_gate * a
        a = self._added(x, a, self.after_attention)
        y = x + a
        seen = self.mlp_norm(y)
        if modulation is not None:
            seen = (1 + modulation.mlp_scale) * seen
        m = self.mlp(seen)
        if modulation is not None:
            m = modulation.mlp_gate * m
        update: Tensor = a + self._added(y, m, self.after_mlp)
        return update

    def round_weights(self, kind: type[RoundedLinear]) -> None:
        """Form the products with its matrices this way from now on."""
        for part in (self.attention, self.mlp):
            for name, matrix in list(part.named_children()):
                if isinstance(matrix, nn.Linear):
                    setattr(part, name, kind(matrix.weight))

    def remember(
        self, x: Tensor, past: Past, modulation: Modulation | None = None, embedded: Tensor | None = None
    ) -> None:
        """Leave in the past what later positions need of x."""
        self.attention.remember(self._before_attention(x, modulation), past, embedded)

    def _before_attention(self, x: Tensor, modulation: Modulation | None) -> Tensor:
        seen: Tensor = self.attention_norm(x)
        return seen if modulation is None else (1 + modulation.attention_scale) * seen

    def _added(self, x: Tensor, branch: Tensor, norm: RMSNorm | None) -> Tensor:
        """What a branch adds to the stream x."""
        if norm is None:
            return branch
        added: Tensor = norm(x + branch) - x if self.stream_norm else norm(branch)
        return added


class Pasts(Protocol):
    """What one application of several layers remembers."""

    def layer(self, number: int) -> Past: ...


def lets_compile(memory: object) -> bool:
    """Whether a compiled step may be taken: there is no memory, or one whose tensors keep their shapes and places."""
    return memory is None or getattr(memory, "fixed", False)


Embedded = Sequence[Tensor | None]  # for the values of each layer; None for those that take none


def blocks_of(layers: nn.ModuleList) -> list[Block]:
    """The layers of a list, by their type."""
    return [block for block in layers if isinstance(block, Block)]


def apply_layers(
    layers: Sequence[Block],
    x: Tensor,
    pasts: Pasts | None = None,
    modulations: Sequence[Modulation] | None = None,
    embedded: Embedded | None = None,
) -> Tensor:
    """B(x) = M(x) − x with M the composition of the layers x ← x + B_l(x): the sum of what each of them adds."""
    total: Tensor | None = None
    for number, block in enumerate(layers):
        past = None if pasts is None else pasts.layer(number)
        modulation = None if modulations is None else modulations[number]
        update = block(
            x if total is None else x + total, past, modulation, None if embedded is None else embedded[number]
        )
        total = update if total is None else total + update
    return torch.zeros_like(x) if total is None else total


def remember_layers(
    layers: Sequence[Block],
    x: Tensor,
    pasts: Pasts,
    modulations: Sequence[Modulation] | None = None,
    embedded: Embedded | None = None,
) -> None:
    """Leave in the pasts what later positions need of x. The last layer computes its keys and values alone."""
    *before, last = layers
    if before:
        x = x + apply_layers(before, x, pasts, modulations, embedded)
    number = len(before)
    last.remember(
        x,
        pasts.layer(number),
        None if modulations is None else modulations[number],
        None if embedded is None else embedded[number],
    )
