"""From logits to the next token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scse.devices import wide
from scse.errors import UserError


@dataclass(frozen=True)
class Sampling:
    """p ∝ exp(logits / temperature), cut to the fewest tokens whose probabilities reach `top_p`; 0 is the likeliest."""

    temperature: float = 0.8
    top_p: float = 0.95

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature must not be negative, got {self.temperature}; 0 takes the likeliest token")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top-p must be above 0 and at most 1, got {self.top_p}")

    def pick(self, logits: Tensor, draws: torch.Generator) -> int:
        """The next token for the logits of one position [V]"""
        return self.choose(logits[None], [draws])[0]

    def choose(self, logits: Tensor, draws: Sequence[torch.Generator]) -> list[int]:
        """The next token of every row [B, V], each drawn by the host from a generator of its own."""
        if self.temperature == 0:
            likeliest: list[int] = logits.argmax(-1).tolist()
            return likeliest
        # In float64, where even the smallest positive temperature leaves numbers.
        scaled = (logits.to(wide(logits.device)) - logits.amax(-1, keepdim=True)) / self.temperature
        probabilities, tokens = scaled.softmax(-1).sort(dim=-1, descending=True, stable=True)
        before = probabilities.cumsum(-1) - probabilities
        shares, tokens = torch.where(before >= self.top_p, 0.0, probabilities).cpu(), tokens.cpu()
        choices = [torch.multinomial(row, 1, generator=draw) for row, draw in zip(shares, draws, strict=True)]
        return [int(row[choice]) for row, choice in zip(tokens, choices, strict=True)]


DEFAULT_SAMPLING = Sampling()
GREEDY = Sampling(temperature=0)
