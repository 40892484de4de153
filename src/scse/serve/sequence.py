"""One sequence that is being continued: what was asked for, how far it is, and who is told."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

import torch

from scse.evaluation.rules import ExitRule
from scse.generation.decode import PAPERS_RULE
from scse.generation.sampling import GREEDY, Sampling
from scse.serve.pages import Need


@dataclass(frozen=True)
class Token:
    """A token, the loops behind its prediction and, where asked for, its log-probability and the likeliest others.

    The first token of a prompt has been predicted by nothing: no loops, no log-probability.
    """

    id: int
    loops: int = 0
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Sink(Protocol):
    """Who is told what happens to a sequence. Called from the engine's thread."""

    def prompt(self, scored: list[Token]) -> None:
        """More tokens of the prompt have been scored, in order."""
        ...

    def token(self, new: Token) -> bool:
        """One more token; True ends the sequence, because a stop string has come."""
        ...

    def end(self, reason: str, message: str = "") -> None:
        """Nothing follows: 'stop', 'length', 'deadline', 'cancelled', or 'failed' with a line that says why."""
        ...


@dataclass(frozen=True)
class Wanted:
    """At most `loops` a token; fewer where the rule's statistic falls to the `threshold`, or the `budget` is used up.

    With a budget of b the first k tokens take at most b·k loops together: what one leaves, later ones may take. With
    `logprobs` every new token comes with its log-probability and so many alternatives, with `scores` those of the
    prompt too.
    """

    prompt: tuple[int, ...]
    new_tokens: int
    loops: int
    threshold: float | None = None
    rule: ExitRule = PAPERS_RULE
    budget: float | None = None
    sampling: Sampling = GREEDY
    seed: int = 0
    stop: int | None = None
    logprobs: int | None = None
    scores: bool = False

    @property
    def positions(self) -> int:
        """How many are computed at most; the last token is only predicted."""
        return len(self.prompt) + max(0, self.new_tokens - 1)


@dataclass(eq=False)
class Sequence:
    """`tokens` are prompt and answer so far; of these `settled` have been through the loops."""

    wanted: Wanted
    sink: Sink
    group: object
    deadline: float | None = None
    need: Need = field(default_factory=lambda: Need(0, 0, 0))
    lane: int = -1
    settled: int = 0
    spent: int = 0
    cancelled: bool = False
    arrived: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.tokens = list(self.wanted.prompt)
        self.draws = torch.Generator().manual_seed(self.wanted.seed)

    @property
    def answered(self) -> int:
        """New tokens so far."""
        return len(self.tokens) - len(self.wanted.prompt)

    @property
    def awaits_a_token(self) -> bool:
        """Whether the next position to be settled predicts a new token."""
        return self.wanted.new_tokens > 0 and self.settled >= len(self.wanted.prompt) - 1

    def chunk(self, most: int) -> list[int]:
        """The next tokens to take through the loops."""
        return self.tokens[self.settled : self.settled + most]

    @property
    def cap(self) -> int:
        """The loops after which the positions at hand stop."""
        wanted = self.wanted
        if wanted.budget is None:
            return wanted.loops
        left = int(wanted.budget * (self.answered + 1) + 1e-9) - self.spent
        return max(1, min(wanted.loops, left))

    def over(self, now: float) -> str | None:
        """Why this must end although it could go on."""
        if self.cancelled:
            return "cancelled"
        return "deadline" if self.deadline is not None and now >= self.deadline else None
