"""Generation as a stream: every step gives one new token for each row that is still going."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scse.devices import send
from scse.errors import UserError
from scse.generation.cache import FIRST_CAPACITY, KVCache, make_cache
from scse.generation.decode import Depth, Settled, settle
from scse.generation.sampling import DEFAULT_SAMPLING, Sampling
from scse.model import LoopedLM


@dataclass(frozen=True)
class NewToken:
    """The next token of a row, and the loops behind its prediction."""

    row: int
    id: int
    loops: int


@dataclass(frozen=True)
class Generation:
    """What is asked for. A row ends after `max_new_tokens` or with the token `stop`.

    Learned positions end with the context. With `slide`, a full window goes on with its last half, computed anew;
    without, a request that does not fit is refused. `cache` is one of `make_cache`.
    """

    depth: Depth
    max_new_tokens: int
    sampling: Sampling = DEFAULT_SAMPLING
    stop: int | None = None
    slide: bool = False
    cache: str = "exact"

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise UserError(f"the number of new tokens must be at least 1, got {self.max_new_tokens}")


def stream(
    model: LoopedLM, prompts: Sequence[Sequence[int]], wanted: Generation, seeds: Sequence[int] | None = None
) -> Iterator[list[NewToken]]:
    """One new token per row and step. Each row draws from its own seed, whatever else is in the batch."""
    _check(model, prompts, wanted)
    draws = [torch.Generator().manual_seed(seed) for seed in (seeds or range(len(prompts)))]
    session = _Session(model, [list(prompt) for prompt in prompts], wanted)
    new: list[NewToken] = []
    for number in range(wanted.max_new_tokens):
        if number and not session.go_on(new):
            return
        picked = wanted.sampling.choose(session.logits(), [draws[row] for row in session.alive])
        new = [NewToken(*one) for one in zip(session.alive, picked, session.taken(), strict=True)]
        yield new


class _Session:
    """The rows that are still going (`alive`), their tokens, and the cache that belongs to them.

    A compiled step keeps its shapes: its cache is fixed, and rows that have ended stay in it unheard.
    """

    def __init__(self, model: LoopedLM, tokens: list[list[int]], wanted: Generation) -> None:
        self.model, self.tokens, self.wanted, self.depth = model, tokens, wanted, wanted.depth
        self.alive = self.rows = list(range(len(tokens)))
        self.cache = self._cache()
        self.settled = self._prefill()

    def logits(self) -> Tensor:
        """Of the next token [rows alive, V]"""
        with torch.no_grad():
            return self.model.head(self._heard(self.settled.outputs[:, -1]))

    def taken(self) -> list[int]:
        """The loops behind them"""
        found: list[int] = self._heard(self.settled.taken[:, -1]).tolist()
        return found

    def go_on(self, new: Sequence[NewToken]) -> bool:
        """Take in the new tokens; False when every row has ended."""
        for token in new:
            self.tokens[token.row].append(token.id)
        keep = [place for place, token in enumerate(new) if token.id != self.wanted.stop]
        if not keep:
            return False
        if len(keep) < len(new):
            self.alive = [self.alive[place] for place in keep]
            if not self.cache.fixed:
                self.cache.select(send(torch.tensor(keep), self.model.device))
                self.rows, self.depth = self.alive, self.depth.rows(keep)
        if self.cache.length == self.cache.context:
            self.cache.clear()
            self.settled = self._prefill()
        else:
            (last,) = self.model.place(torch.tensor([[self.tokens[row][-1]] for row in self.rows]))
            self.settled = settle(self.model, last, self.cache.append(1), self.depth)
        return True

    def _cache(self) -> KVCache:
        fixed, room = self.model.compiled, max(map(len, self.tokens)) + self.wanted.max_new_tokens
        if fixed:  # texts of about the same length share a compilation
            room = math.ceil(room / FIRST_CAPACITY) * FIRST_CAPACITY
        return make_cache(self.wanted.cache, self.model, len(self.rows), self.depth.deepest, room, fixed)

    def _prefill(self) -> Settled:
        context = self.model.config.shape.context
        rows = [_window(self.tokens[row], context) for row in self.rows]
        longest = max(map(len, rows))
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
        real = torch.tensor([[False] * (longest - len(row)) + [True] * len(row) for row in rows])
        (given,) = self.model.place(ids)
        return settle(self.model, given, self.cache.append(longest, real), self.depth)

    def _heard(self, of_rows: Tensor) -> Tensor:
        """What belongs to the rows that are still going."""
        if len(self.alive) == len(self.rows):
            return of_rows
        return of_rows[send(torch.tensor([self.rows.index(row) for row in self.alive]), of_rows.device)]


def _window(tokens: list[int], context: int) -> list[int]:
    """What the model sees: everything or, when that leaves no room for a new position, the last half context."""
    return tokens if len(tokens) <= context else tokens[-max(1, context // 2) :]


def _check(model: LoopedLM, prompts: Sequence[Sequence[int]], wanted: Generation) -> None:
    context = model.config.shape.context
    if not prompts or not all(map(len, prompts)):
        raise UserError("the prompt is empty; give at least one token of text to go on from")
    wanted.depth.of(len(prompts))
    needed = max(map(len, prompts)) + wanted.max_new_tokens - 1
    if needed > context and not wanted.slide:
        raise UserError(
            f"a prompt of {max(map(len, prompts))} tokens and {wanted.max_new_tokens} new ones do not fit into the "
            f"model's {context} positions; ask for less, or let the window slide (--slide)"
        )
