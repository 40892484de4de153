"""A training run, fully resolved. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from scse.compiling import OFF, compiling
from scse.config.depths import Depths, stored_depths
from scse.config.model import ModelConfig
from scse.config.objective import LAST, canonical_objective
from scse.config.stored import check_fields, written
from scse.data import DataConfig
from scse.errors import UserError, checked_choice
from scse.precision import TRAINING as PRECISIONS

STRATEGIES = ("ddp", "fsdp", "hsdp")
SHARDED = STRATEGIES[1:]  # those that divide the weights


@dataclass(frozen=True)
class Parent:
    """The checkpoint whose weights and moments a run began with.

    `config` is a hash of what its run was, its seed aside; `step` counts that run's own steps, `total` also those of
    its own parents; `weights` is the hash of the file.
    """

    config: str
    seed: int
    step: int
    total: int
    weights: str


@dataclass(frozen=True)
class TrainConfig:
    """What determines the weights a run ends with.

    `batch` counts the sequences of one optimiser step, all processes together; they are worked through in
    `micro_batches` parts. `seed` feeds initialisation, depth and dropout, `data_seed` the order of the data: the
    paper's 95.6M runs vary the first and keep the second. `guests` are the files and packages from outside that the run
    is made with, with their hashes or versions. `problem` are the options of a corpus that is a problem.
    The loop depth of a step is drawn by the sampler `depths` with the parameter `max_loops`, which over the first
    `depth_warmup` steps grows from 1. Gradients go through the last `backprop` loops, 0 for all. `objective` is what is
    minimised (`objective.py`).
    """

    model: ModelConfig
    corpus: str
    tokenizer: str
    steps: int
    batch: int = 32
    micro_batches: int = 1
    lr: float = 3e-4
    warmup: int = 500
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    max_loops: int = 8
    seed: int = 0
    data_seed: int = 0
    precision: str = "float32"
    # Later fields, each with a neutral default (`stored.py`).
    parent: Parent | None = None
    guests: Mapping[str, str] = field(default_factory=dict)
    problem: Mapping[str, int] = field(default_factory=dict)
    depth_warmup: int = 0
    depths: str = "uniform"
    backprop: int = 0
    objective: str = LAST

    FIRST: ClassVar[tuple[str, ...]] = (
        "model",
        "corpus",
        "tokenizer",
        "steps",
        "batch",
        "micro_batches",
        "lr",
        "warmup",
        "weight_decay",
        "beta1",
        "beta2",
        "clip",
        "max_loops",
        "seed",
        "data_seed",
        "precision",
    )

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "micro_batches", "max_loops"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("warmup", "depth_warmup", "backprop", "seed", "data_seed", "weight_decay", "lr"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        if self.clip <= 0:
            raise UserError(f"clip must be positive, got {self.clip}")
        if self.batch % self.micro_batches:
            raise UserError(f"micro_batches={self.micro_batches} does not divide the batch of {self.batch} sequences")
        checked_choice("precision", self.precision, PRECISIONS)
        if canonical_objective(self.objective) != self.objective:
            raise UserError(f"objective '{self.objective}' is stored as '{canonical_objective(self.objective)}'")

    @property
    def sampler(self) -> Depths:
        """How deep its steps go."""
        return stored_depths(self.depths, self.max_loops, self.depth_warmup)

    @property
    def tokens_per_step(self) -> int:
        return self.batch * self.model.shape.context

    @property
    def steps_before(self) -> int:
        """Optimiser steps behind the weights this run begins with."""
        return self.parent.total if self.parent else 0

    def to_dict(self) -> dict[str, Any]:
        parts = {
            "model": self.model.to_dict(),
            "parent": self.parent and asdict(self.parent),
            "guests": dict(self.guests),
            "problem": dict(self.problem),
        }
        return {name: parts.get(name, value) for name, value in written(self).items()}

    def protocol(self) -> dict[str, Any]:
        """How the model was trained, but for the seed; what follows the seed is written as following it.

        A data order that follows the seed is one protocol for all seeds; one that is held fixed is another.
        """
        stated = {name: value for name, value in self.to_dict().items() if name not in ("model", "seed")}
        stated["data_seed"] = self._beside_seed(self.data_seed)
        if self.parent is not None:
            seed = self._beside_seed(self.parent.seed)
            stated["parent"] = {"config": self.parent.config, "seed": seed, "step": self.parent.step}
        return stated

    def _beside_seed(self, seed: int) -> int | str:
        return "seed" if seed == self.seed else seed

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        check_fields(cls, data, "training option", "the run's configuration")
        try:
            parent = data.get("parent")
            parts = {"model": ModelConfig.from_dict(data["model"]), "parent": parent and Parent(**parent)}
            return cls(**{**data, **parts})
        except (TypeError, AttributeError):
            raise UserError("the run's configuration holds values of the wrong type; restore config.json") from None


@dataclass(frozen=True)
class RunOptions:
    """What may differ between two invocations of the same run without changing its weights.

    `eval_loops` is the depth of validation, None for `max_loops`. A checkpoint is due every
    `checkpoint_every` steps, and when the last one is `checkpoint_minutes` old. `start` is the folder of the
    checkpoint that the run's configuration names as its parent; it is needed until the run has one of its own.
    `device` is where to train and `compile` ('on', 'off', 'auto', or yes and no) whether steps are compiled: both
    change no more than how numbers round.
    """

    data_dir: str | None = None
    cache_dir: str | None = None
    eval_every: int = 100
    eval_windows: int = 64
    eval_loops: int | None = None
    start: Path | None = None
    checkpoint_every: int = 200
    checkpoint_minutes: float = 15
    keep: int = 2
    recompute: bool = False
    strategy: str = "ddp"
    tensorboard: bool = False
    quiet: bool = False
    device: str = "auto"
    compile: str | bool = OFF

    def __post_init__(self) -> None:
        for name in ("eval_every", "eval_windows", "eval_loops", "checkpoint_every", "keep"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.checkpoint_minutes > 0:
            raise UserError(f"checkpoint_minutes must be more than 0, got {self.checkpoint_minutes}")
        compiling(self.compile)
        checked_choice("strategy", self.strategy, STRATEGIES)


def data_config(config: TrainConfig, options: RunOptions) -> DataConfig:
    """The data of a run, and where it lies on this machine."""
    return DataConfig(config.corpus, config.tokenizer, options.data_dir, options.cache_dir, config.problem)


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> list[str]:
    """'name: old → new' for every leaf in which two configurations differ."""
    found = []
    for name in sorted(stored.keys() | wanted.keys()):
        old, new = stored.get(name), wanted.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += differences(old, new, f"{prefix}{name}.")
        elif old != new:
            found.append(f"{prefix}{name}: {old} → {new}")
    return found
