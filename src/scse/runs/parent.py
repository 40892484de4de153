"""Runs that begin with the weights of another: which checkpoint is meant, and what the new run takes over.

The weights must fit tensor for tensor; AdamW's moments and the count of its steps come with them, and so does the
tokenizer. Data order, depths and dropout go on where the parent stopped. The learning rate begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scse.config import Parent, RunOptions, TrainConfig
from scse.data import Tokenizer, load_tokenizer
from scse.errors import UserError
from scse.files import content_hash, expand
from scse.layout import CHECKPOINTS, CONFIG_FILE, MODEL, TOKENIZER_FILE
from scse.problems import PROBLEMS
from scse.runs.checkpoint import Checkpoint, CheckpointStore, verify
from scse.runs.folder import read_run_config

# What a new run decides for itself.
_OWN = ("model", "corpus", "tokenizer", "steps", "precision", "parent", "problem", "guests")


@dataclass(frozen=True)
class Start:
    """What a run begins with: the checkpoint at `folder`, and the configuration whose settings it takes over."""

    parent: Parent
    config: TrainConfig
    folder: Path

    def settings(self, family: str | None, changes: Mapping[str, object]) -> dict[str, object]:
        """Flat settings as `assemble` takes them: the parent's, and what is changed.

        A scale that is named replaces its shape, and another family its options.
        """
        model, training = self.config.model, self.config.to_dict()
        shape = {name: value for name, value in asdict(model.shape).items() if name != "vocabulary"}
        kept = {name: value for name, value in training.items() if name not in _OWN}
        if self.config.data_seed == self.config.seed:
            del kept["data_seed"]
        options = model.options if family in (None, model.family) else {}
        if "scale" in changes:
            shape = {}
        if "depths" in changes:
            kept.pop("max_loops", None)
            kept.pop("depth_warmup", None)
        corpus = {"data": self.config.corpus, "tokenizer": self.config.tokenizer}
        if self.config.corpus in PROBLEMS:
            shape.pop("context", None)  # follows from the problem's options, which may be changed
        if (self.config.corpus in PROBLEMS) != (str(changes.get("data", self.config.corpus)) in PROBLEMS):
            raise UserError("a run on text cannot begin from one on a problem, nor the other way round: other words")
        return {**corpus, **self.config.problem, **shape, **options, **kept, **changes}

    def child(self, config: TrainConfig) -> TrainConfig:
        """A configuration as that of a run which begins here."""
        if config.tokenizer != self.config.tokenizer:
            pair = f"'{config.tokenizer}' is not '{self.config.tokenizer}'"
            raise UserError(f"a run that begins from another reads with its tokenizer, and {pair}; leave --vocab out")
        growth = config.depth_warmup
        if growth != self.config.depth_warmup and 0 < growth <= self.parent.total:
            behind = f"has {self.parent.total} steps behind it"
            raise UserError(f"depths cannot grow over the first {growth} steps: the run it begins from {behind}")
        if config.corpus not in PROBLEMS:  # weights of other projects have rows that their tokenizer does not use
            shape = replace(config.model.shape, vocabulary=self.config.model.shape.vocabulary)
            config = replace(config, model=replace(config.model, shape=shape))
        return replace(config, parent=self.parent)


def find_start(text: str, out: Path) -> Start:
    """The checkpoint that 'RUN' (its newest) or 'RUN@STEP' names, for a run in `out`.

    A run that has begun keeps its parent, also when that has been trained further or is no longer there.
    """
    folder, step = _named(text)
    if folder.resolve() == out.resolve():
        raise UserError(f"--from and --out are both {out}; give the new run a folder of its own")
    begun = read_run_config(out)[0] if (out / CONFIG_FILE).is_file() else None
    known = begun.parent if begun else None
    there = read_run_config(folder) if (folder / CONFIG_FILE).is_file() else None
    if begun and known and step in (None, known.step) and (there is None or _describes(known, *there)):
        return Start(known, there[0] if there else begun, _checkpoint(folder, known.step))
    if there is None:
        raise UserError(f"no run in {folder} (config.json is missing); --from takes RUN or RUN@STEP")
    config, data = there
    found = _newest(folder) if step is None else _at(folder, step)
    total = config.steps_before + found.step
    return Start(Parent(_hash(config, data), config.seed, found.step, total, found.digest), config, found.folder)


def _named(text: str) -> tuple[Path, int | None]:
    """'runs/a@40' -> runs/a, 40; a folder whose own name ends like that is itself."""
    run, mark, step = text.rpartition("@")
    if mark and step.isascii() and step.isdigit() and not expand(text).exists():
        return expand(run), int(step)
    return expand(text), None


def _hash(config: TrainConfig, data: dict[str, Any]) -> str:
    return content_hash({"model": config.model.to_dict(), "protocol": config.protocol(), "data": data})


def _describes(parent: Parent, config: TrainConfig, data: dict[str, Any]) -> bool:
    return (parent.config, parent.seed) == (_hash(config, data), config.seed)


def _newest(folder: Path) -> Checkpoint:
    found = CheckpointStore(folder / CHECKPOINTS, keep=1).newest()
    if found is None:
        remedy = "a run whose checkpoints are gone can be trained further as an export, with transformers"
        raise UserError(f"{folder} has no usable checkpoint to begin from; {remedy}")
    return found


def _at(folder: Path, step: int) -> Checkpoint:
    steps = CheckpointStore(folder / CHECKPOINTS, keep=1).steps()
    if step not in steps:
        there = ", ".join(map(str, sorted(steps))) or "none"
        raise UserError(f"{folder} has no checkpoint at step {step} (there are: {there})")
    return verify(_checkpoint(folder, step))


def _checkpoint(folder: Path, step: int) -> Path:
    return folder / CHECKPOINTS / f"step-{step}"


def starting_checkpoint(config: TrainConfig, options: RunOptions) -> Checkpoint | None:
    """The parent's checkpoint with the weights that the configuration names; None for a run without a parent."""
    if config.parent is None:
        return None
    found = verify(_named_start(options))
    if found.digest != config.parent.weights:
        raise UserError(f"{found.folder} does not hold the weights this run began with; restore it, or use a new --out")
    return found


def inherited_tokenizer(config: TrainConfig, folder: Path, options: RunOptions) -> Tokenizer | None:
    """The tokenizer of the parent, which the run's own folder holds once it has begun; None without a parent."""
    if config.parent is None:
        return None
    own = folder / MODEL
    begun = (own / TOKENIZER_FILE).is_file()
    return load_tokenizer(own if begun else _named_start(options).parent.parent / MODEL)


def _named_start(options: RunOptions) -> Path:
    if options.start is None:
        raise UserError("this run begins with the weights of another; name that run with --from")
    return options.start
