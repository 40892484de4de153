"""From logits to the next token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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
        if self.temperature == 0:
            return int(logits.argmax())
        # In float64, where even the smallest positive temperature leaves numbers.
        scaled = (logits.double() - logits.max()) / self.temperature
        probabilities, tokens = scaled.softmax(-1).sort(descending=True, stable=True)
        before = probabilities.cumsum(-1) - probabilities
        probabilities[before >= self.top_p] = 0
        choice = torch.multinomial(probabilities.cpu(), 1, generator=draws)
        return int(tokens[choice.to(tokens.device)])


DEFAULT_SAMPLING = Sampling()
GREEDY = Sampling(temperature=0)
