"""How deep each training step goes: depth samplers as small values. No torch here.

A sampler is written as `name:mean`, such as `uniform:8` or `lognormal-poisson:8`, with `/sequence` behind it when every
sequence of a batch draws its own depth. What it draws is a function of the run's seed and the step, so it is the same
on all processes and after a resume.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from scse.errors import UserError
from scse.registry import Registry

DEEPEST = 1024  # more loops than anybody trains through; a heavy tail ends here
WHOLE_BATCH, EACH_SEQUENCE = "", "/sequence"


@dataclass(frozen=True)
class DepthSampler(ABC):
    """Draws a number of loops T ≥ 1 for a training step. `argument` is what stands behind the colon."""

    argument: str

    name: ClassVar[str]
    example: ClassVar[str]

    @abstractmethod
    def draw(self, random: np.random.Generator, step: int) -> int:
        """T for one step, or for one sequence of it."""

    @property
    @abstractmethod
    def mean(self) -> float:
        """The expected depth over a run, for costs."""

    def _number(self, most: int = DEEPEST) -> int:
        if not re.fullmatch(r"[0-9]{1,6}", self.argument) or not 1 <= int(self.argument) <= most:
            raise UserError(f"--depths {self.name}:N takes a whole number from 1 to {most}, got '{self.argument}'")
        return int(self.argument)


@dataclass(frozen=True)
class Uniform(DepthSampler):
    """T ~ uniform{1, …, N}: the paper's."""

    name = "uniform"
    example = "uniform:8"

    def __post_init__(self) -> None:
        self._number()

    def draw(self, random: np.random.Generator, step: int) -> int:
        return int(random.integers(1, self._number() + 1))

    @property
    def mean(self) -> float:
        return (1 + self._number()) / 2


@dataclass(frozen=True)
class Fixed(DepthSampler):
    """T = N"""

    name = "fixed"
    example = "fixed:8"

    def __post_init__(self) -> None:
        self._number()

    def draw(self, random: np.random.Generator, step: int) -> int:
        return self._number()

    @property
    def mean(self) -> float:
        return float(self._number())


@dataclass(frozen=True)
class Poisson(DepthSampler):
    """T = 1 + Poisson(N − 1), so that E[T] = N."""

    name = "poisson"
    example = "poisson:8"

    def __post_init__(self) -> None:
        self._number()

    def draw(self, random: np.random.Generator, step: int) -> int:
        return min(DEEPEST, 1 + int(random.poisson(self._number() - 1)))

    @property
    def mean(self) -> float:
        return float(self._number())


@dataclass(frozen=True)
class LognormalPoisson(DepthSampler):
    """T = 1 + Poisson(λ), log λ ~ Normal(log(N − 1) − σ²/2, σ), σ = 0.5: E[T] = N, heavy-tailed, as Huginn draws it."""

    name = "lognormal-poisson"
    example = "lognormal-poisson:8"
    SPREAD: ClassVar[float] = 0.5

    def __post_init__(self) -> None:
        if self._number() < 2:
            raise UserError("--depths lognormal-poisson:N needs a mean of at least 2; fixed:1 is one loop")

    def draw(self, random: np.random.Generator, step: int) -> int:
        rate = random.lognormal(np.log(self._number() - 1) - self.SPREAD**2 / 2, self.SPREAD)
        return min(DEEPEST, 1 + int(random.poisson(rate)))

    @property
    def mean(self) -> float:
        return float(self._number())


@dataclass(frozen=True)
class Curriculum(DepthSampler):
    """T ~ uniform{1, …, n(step)} with n growing evenly from A to B over the first S steps, written A-B@S."""

    name = "curriculum"
    example = "curriculum:2-16@1000"

    def __post_init__(self) -> None:
        self._bounds()

    def _bounds(self) -> tuple[int, int, int]:
        match = re.fullmatch(r"([0-9]{1,4})-([0-9]{1,4})@([0-9]{1,9})", self.argument)
        if match is None:
            raise UserError(f"--depths curriculum takes A-B@STEPS such as 2-16@1000, got '{self.argument}'")
        first, last, steps = map(int, match.groups())
        if not 1 <= first <= last <= DEEPEST or steps < 1:
            raise UserError(
                f"--depths curriculum:A-B@STEPS needs 1 ≤ A ≤ B ≤ {DEEPEST} and steps, got '{self.argument}'"
            )
        return first, last, steps

    def draw(self, random: np.random.Generator, step: int) -> int:
        first, last, steps = self._bounds()
        bound = first + (last - first) * min(step, steps) // steps
        return int(random.integers(1, bound + 1))

    @property
    def mean(self) -> float:
        return (1 + self._bounds()[1]) / 2


SAMPLERS: Registry[type[DepthSampler]] = Registry(
    "depth sampler", (Uniform, Poisson, LognormalPoisson, Fixed, Curriculum), hint="for example uniform:8 or poisson:8"
)


def parse_depths(text: str) -> tuple[DepthSampler, bool]:
    """The sampler that a text names, and whether every sequence draws for itself."""
    each = text.endswith(EACH_SEQUENCE)
    name, colon, argument = text.removesuffix(EACH_SEQUENCE).partition(":")
    kind = SAMPLERS.find(name)
    if not colon:
        raise UserError(f"--depths {name} lacks its number; write for example {kind.example}")
    return kind(argument), each
