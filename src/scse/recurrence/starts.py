"""Starts that do not look at the input: zero, and noise that is the same in every batch.

Shapes: B batch, L positions, d width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from scse.config.model import Shape
from scse.devices import wide
from scse.errors import checked_choice
from scse.recurrence.anchors import EmbeddingStart, ProjectedStart
from scse.recurrence.slots import Start

CUT = 3.0  # standard deviations at which the normal distribution is cut off
_GOLDEN = 0x9E3779B97F4A7C15
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


class ZeroStart(Start):
    """h_0 = 0"""

    def forward(self, e: Tensor, positions: Tensor | None = None) -> Tensor:
        return torch.zeros_like(e)


class NoiseStart(Start):
    """h_0 = σ·ε, ε from the standard normal distribution cut off at ±3.

    In evaluation ε is a hash of (seed, position, channel). So it does not depend on the batch, on padding, or on what
    comes later, and a position that is decoded under a cache starts where it would have started without one. While
    training, every sequence of every step draws its own from torch's global generator.
    """

    def __init__(self, std: float, seed: int) -> None:
        super().__init__()
        self.std = std
        self.seed = seed

    def forward(self, e: Tensor, positions: Tensor | None = None) -> Tensor:
        if self.training:
            return nn.init.trunc_normal_(torch.empty_like(e), std=self.std, a=-CUT * self.std, b=CUT * self.std)
        if positions is None:
            positions = torch.arange(e.shape[1], device=e.device)
        noise = self.std * hashed_normal(self.seed, positions, e.shape[2])
        return noise.to(e.dtype).expand_as(e).clone()  # rows may be overwritten one by one


def hashed_normal(seed: int, positions: Tensor, width: int) -> Tensor:
    """ε(seed, position, channel) [*positions.shape, width] in float64, where the device has it.

    A counter goes through the finaliser of SplitMix64; 53 bits of the result are a uniform number, and the inverse of
    the normal distribution function between the cuts makes it ε.
    """
    channels = torch.arange(width, device=positions.device)
    counter = (positions[..., None] * width + channels + 1) * _signed(_GOLDEN) + _signed(seed * _MIX[0])
    counter = (counter ^ _shift(counter, 30)) * _signed(_MIX[0])
    counter = (counter ^ _shift(counter, 27)) * _signed(_MIX[1])
    counter = counter ^ _shift(counter, 31)
    uniform = (_shift(counter, 11).to(wide(positions.device)) + 0.5) / 2**53
    low = 0.5 * math.erfc(CUT / math.sqrt(2))
    normal: Tensor = torch.special.ndtri(low + uniform * (1 - 2 * low))
    return normal


def _signed(number: int) -> int:
    """An integer modulo 2⁶⁴ as torch writes it."""
    return (number + 2**63) % 2**64 - 2**63


def _shift(x: Tensor, bits: int) -> Tensor:
    """x >> bits of an unsigned number; torch's own shift keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


BLIND = ("noise", "zero")  # starts that hold nothing of the input
STARTS = (*BLIND, "embedding", "projected")


def make_start(name: str, shape: Shape, scale: float, seed: int) -> Start:
    """A start by name; noise has `scale` times the standard deviation with which the embedding is drawn."""
    if checked_choice("start", name, STARTS) == "noise":
        return NoiseStart(scale * shape.init_std, seed)
    if name == "zero":
        return ZeroStart()
    return EmbeddingStart() if name == "embedding" else ProjectedStart(shape)
