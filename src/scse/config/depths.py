"""How deep a training step goes: samplers of the loop depth T. No torch here.

A sampler is chosen by a text, NAME:LOOPS[:WARMUP][/sequence]: `poisson:8` draws depths with a mean of 8 for each step,
`poisson:8/sequence` for each sequence of a step. Over the first WARMUP steps LOOPS grows from 1; `curriculum:8:1000` is
another way to write `uniform:8:1000`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from scse.errors import UserError, unknown_name
from scse.registry import Registry

PER_SEQUENCE = "/sequence"
CURRICULUM = "curriculum"
DRAWS = 4096
_MOST = 1_000_000


class DepthSampler(ABC):
    """A distribution of T ≥ 1 with one parameter n. Yours is registered with `scse.register(MySampler())`."""

    name: ClassVar[str]
    table: ClassVar[str] = "scse.config.depths:SAMPLERS"

    @abstractmethod
    def draw(self, random: np.random.Generator, n: int, count: int | None) -> NDArray[np.int64] | int:
        """`count` depths, or a single one where that is None."""

    @abstractmethod
    def mean(self, n: int) -> float:
        """E[T]"""


class Uniform(DepthSampler):
    """T ~ uniform{1, …, n}, the paper's."""

    name = "uniform"

    def draw(self, random: np.random.Generator, n: int, count: int | None) -> NDArray[np.int64] | int:
        return random.integers(1, n + 1, count)

    def mean(self, n: int) -> float:
        return (1 + n) / 2


class Poisson(DepthSampler):
    """T − 1 ~ Poisson(n − 1), so that E[T] = n."""

    name = "poisson"

    def draw(self, random: np.random.Generator, n: int, count: int | None) -> NDArray[np.int64] | int:
        return 1 + random.poisson(n - 1, count)

    def mean(self, n: int) -> float:
        return float(n)


class LogNormalPoisson(DepthSampler):
    """T − 1 ~ Poisson(Λ) with log Λ ~ N(log(n − 1) − σ²/2, σ²), σ = 1/2, so that E[T] = n; a long tail (Huginn's)."""

    name = "lognormal-poisson"
    SIGMA: ClassVar[float] = 0.5

    def draw(self, random: np.random.Generator, n: int, count: int | None) -> NDArray[np.int64] | int:
        if n == 1:
            return 1 if count is None else np.ones(count, dtype=np.int64)
        rate = random.lognormal(math.log(n - 1) - self.SIGMA**2 / 2, self.SIGMA, count)
        return 1 + random.poisson(rate)

    def mean(self, n: int) -> float:
        return float(n)


class LogUniform(DepthSampler):
    """T = ⌊e^U⌋ with U uniform on [0, log(n + 1)): P(T = t) = log(1 + 1/t)/log(n + 1), every octave of 1 … n alike.

    Shallow depths stay frequent however large n is, so a step can still be learnt from them (E[T] is 9 for n = 32).
    """

    name = "log-uniform"

    def draw(self, random: np.random.Generator, n: int, count: int | None) -> NDArray[np.int64] | int:
        drawn = np.exp(random.uniform(0.0, math.log(n + 1), count))
        return np.clip(drawn, 1, n).astype(np.int64)

    def mean(self, n: int) -> float:
        return math.fsum(t * math.log1p(1 / t) for t in range(1, n + 1)) / math.log(n + 1)


class Fixed(DepthSampler):
    """T = n"""

    name = "fixed"

    def draw(self, random: np.random.Generator, n: int, count: int | None) -> NDArray[np.int64] | int:
        return n if count is None else np.full(count, n, dtype=np.int64)

    def mean(self, n: int) -> float:
        return float(n)


SAMPLERS: Registry[DepthSampler] = Registry(
    "depth sampler", (Uniform(), Poisson(), LogNormalPoisson(), LogUniform(), Fixed())
)


@dataclass(frozen=True)
class Depths:
    """A sampler with its parameter, the steps over which that grows from 1, and whether every sequence draws its own.

    `text` names the sampler as a run stores it: without the numbers, which are `max_loops` and `depth_warmup`.
    """

    sampler: DepthSampler
    n: int
    warmup: int = 0
    per_sequence: bool = False

    @property
    def text(self) -> str:
        return self.sampler.name + PER_SEQUENCE * self.per_sequence

    @property
    def written(self) -> str:
        """As a user writes it, without the steps over which it grows."""
        return f"{self.sampler.name}:{self.n}{PER_SEQUENCE * self.per_sequence}"

    @property
    def mean(self) -> float:
        """E[T] once it has grown."""
        return self.sampler.mean(self.n)

    @property
    def deepest(self) -> int:
        """The deepest of some thousand draws once it has grown, as a run meets it."""
        return int(np.max(self.sampler.draw(np.random.default_rng(0), self.n, DRAWS)))

    def draw(self, random: np.random.Generator, step: int, sequences: int) -> int | NDArray[np.int64]:
        """The depth of a step, or of each of its sequences; the same on all processes."""
        n = self.n if step >= self.warmup else 1 + (self.n - 1) * step // self.warmup
        if self.per_sequence:
            return np.asarray(self.sampler.draw(random, n, sequences))
        return int(self.sampler.draw(random, n, None))


def stored_depths(text: str, n: int, warmup: int) -> Depths:
    """What a run's configuration says, put together."""
    name, per_sequence = text.removesuffix(PER_SEQUENCE), text.endswith(PER_SEQUENCE)
    return Depths(SAMPLERS.find(name), n, warmup, per_sequence)


def parse_depths(text: str) -> Depths:
    """What a user writes: NAME:LOOPS[:WARMUP][/sequence]."""
    body, per_sequence = text.removesuffix(PER_SEQUENCE), text.endswith(PER_SEQUENCE)
    if "/" in body:
        raise UserError(f"depths '{text}' end in '/{body.partition('/')[2]}'; only '{PER_SEQUENCE}' may follow")
    name, *numbers = body.split(":")
    if name != CURRICULUM and name not in SAMPLERS:
        raise unknown_name(SAMPLERS.kind, name, (*SAMPLERS.names(), CURRICULUM))
    sampler = SAMPLERS.find("uniform" if name == CURRICULUM else name)
    if len(numbers) not in ((2,) if name == CURRICULUM else (1, 2)):
        form = f"{name}:LOOPS:STEPS" if name == CURRICULUM else f"{name}:LOOPS"
        raise UserError(f"depths '{text}' lack a number or have too many; write {form}, for example {form_of(name)}")
    values = []
    for number in numbers:
        if not (number.isascii() and number.isdigit() and int(number) < _MOST):
            raise UserError(f"'{number}' in depths '{text}' is not a whole number; write for example {form_of(name)}")
        values.append(int(number))
    if values[0] < 1:
        raise UserError(f"depths '{text}' must reach at least 1 loop")
    return Depths(sampler, values[0], values[1] if len(values) > 1 else 0, per_sequence)


def form_of(name: str) -> str:
    return f"{name}:8:1000" if name == CURRICULUM else f"{name}:8"
