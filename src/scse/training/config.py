"""A training run, fully resolved, and how it is put together from a protocol, flags and `--set key=value`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from scse.config import GPT2_VOCABULARY, ModelConfig, Shape, scale
from scse.data import DataConfig, settled_corpus
from scse.data.tokenizer import trained_size
from scse.errors import UserError, unknown_name
from scse.nn.skeleton import without_storage
from scse.recurrence import FAMILIES
from scse.recurrence.registry import typed_like

PRECISIONS = ("auto", "float32", "bfloat16")


# For a field of `TrainConfig` that came after the first stored runs. Its default is neutral: what was done before it
# existed. A neutral field is left out of what is stored, and one that is missing there is neutral, so that old runs can
# be continued and old records are still those of the same runs.
CAME_LATER = {"later": True}


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
    paper's 95.6M runs vary the first and keep the second.
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
    parent: Parent | None = field(default=None, metadata=CAME_LATER)

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "micro_batches", "max_loops"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("warmup", "seed", "data_seed", "weight_decay", "lr"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        if self.clip <= 0:
            raise UserError(f"clip must be positive, got {self.clip}")
        if self.batch % self.micro_batches:
            raise UserError(f"micro_batches={self.micro_batches} does not divide the batch of {self.batch} sequences")
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)

    @property
    def tokens_per_step(self) -> int:
        return self.batch * self.model.shape.context

    @property
    def steps_before(self) -> int:
        """Optimiser steps behind the weights this run begins with."""
        return self.parent.total if self.parent else 0

    def to_dict(self) -> dict[str, Any]:
        """Every field, but for later ones at their neutral value."""
        stated = {**asdict(self), "model": self.model.to_dict()}
        return {name: value for name, value in stated.items() if not self._neutral(name)}

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

    def _neutral(self, name: str) -> bool:
        return name in LATER and getattr(self, name) == LATER[name]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        known = {f.name for f in fields(cls)}
        for name in data:
            if name not in known:
                raise unknown_name("training option", name, known)
        missing = sorted(known - set(data) - set(LATER))
        if missing:
            raise UserError(f"the run's configuration lacks '{missing[0]}'")
        try:
            parent = data.get("parent")
            parts = {"model": ModelConfig.from_dict(data["model"]), "parent": parent and Parent(**parent)}
            return cls(**{**data, **parts})
        except (TypeError, AttributeError):
            raise UserError("the run's configuration holds values of the wrong type; restore config.json") from None


LATER = {f.name: f.default for f in fields(TrainConfig) if f.metadata.get("later")}


@dataclass(frozen=True)
class RunOptions:
    """What may differ between two invocations of the same run without changing its weights.

    `eval_loops` is the depth of validation, None for the deepest that training samples. `start` is the folder of the
    checkpoint that the run's configuration names as its parent; it is needed until the run has one of its own.
    """

    data_dir: str | None = None
    cache_dir: str | None = None
    eval_every: int = 100
    eval_windows: int = 64
    eval_loops: int | None = None
    start: Path | None = None
    checkpoint_every: int = 200
    keep: int = 2
    recompute: bool = False
    strategy: str = "ddp"
    tensorboard: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        for name in ("eval_every", "eval_windows", "eval_loops", "checkpoint_every", "keep"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.strategy not in ("ddp", "fsdp"):
            raise unknown_name("strategy", self.strategy, ("ddp", "fsdp"))


def data_config(config: TrainConfig, options: RunOptions) -> DataConfig:
    return DataConfig(config.corpus, config.tokenizer, options.data_dir, options.cache_dir)


def assemble(family: str, settings: Mapping[str, object]) -> TrainConfig:
    """A run from flat settings: options of training, of the shape and of the family by their plain names.

    `scale`, `data` and `tokenizer` name a shape, a corpus and a tokenizer; all else overrides one field.
    """
    given = dict(settings)
    shape = scale(str(given.pop("scale", "mini")))
    default_tokenizer = "gpt2" if shape.vocabulary == GPT2_VOCABULARY else f"bpe-{shape.vocabulary}"
    tokenizer = str(given.pop("tokenizer", default_tokenizer))
    shape = replace(shape, vocabulary=trained_size(tokenizer) or GPT2_VOCABULARY)
    row = FAMILIES.find(family)
    training: dict[str, Any] = {"corpus": settled_corpus(str(given.pop("data", "stdlib"))), "tokenizer": tokenizer}
    shape_fields = {f.name: getattr(shape, f.name) for f in fields(Shape) if f.name != "vocabulary"}
    defaults = {f.name: f.default for f in fields(TrainConfig) if f.default not in (MISSING, None)}
    train_fields = defaults | {"steps": 0}
    given.setdefault("data_seed", given.get("seed", 0))

    chosen: dict[str, dict[str, Any]] = {"train": {}, "shape": {}, "family": {}}
    for name, value in given.items():
        if name in train_fields:
            chosen["train"][name] = typed_like(name, train_fields[name], value)
        elif name in shape_fields:
            chosen["shape"][name] = typed_like(name, shape_fields[name], value)
        elif name in row.options:
            chosen["family"][name] = value
        else:
            known = [*train_fields, *shape_fields, *row.options]
            raise unknown_name(f"option for a run of '{row.name}'", name, known)
    if "steps" not in chosen["train"]:
        raise UserError("the number of steps is missing; give --steps N or a --protocol")
    model = ModelConfig(row.name, replace(shape, **chosen["shape"]), row.resolve(chosen["family"]))
    with without_storage():
        FAMILIES.build(model)  # the units check their options: before any text is read
    return TrainConfig(model=model, **training, **chosen["train"])


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
