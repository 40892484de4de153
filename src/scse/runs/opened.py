"""A run opened for evaluation: its model, its tokenizer, and what it was trained with."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from scse.config import TrainConfig
from scse.data import Corpus, DataConfig, Tokenizer, load_tokenizer, open_corpus
from scse.errors import UserError
from scse.model import LoopedLM
from scse.persistence import WEIGHTS_FILE, build, load_model
from scse.problems import PROBLEMS
from scse.registry import require_guests
from scse.runs.checkpoint import WEIGHTS, CheckpointStore
from scse.runs.exits import load_gate
from scse.runs.folder import read_run_config

log = logging.getLogger("scse")


@dataclass(frozen=True)
class Run:
    """`step` is the number of optimiser steps behind the weights, `weights` their file."""

    folder: Path
    config: TrainConfig
    model: LoopedLM
    tokenizer: Tokenizer
    step: int
    weights: Path

    def corpus(self, name: str | None, data_dir: str | None, cache_dir: str | None, progress: bool = True) -> Corpus:
        """A corpus (by default the run's own) as tokens of the run's tokenizer."""
        name, own = name or self.config.corpus, self.config.corpus
        if name != own and (name in PROBLEMS or own in PROBLEMS):
            raise UserError(f"{self.folder} was trained on {own} and cannot read {name}; train a run on it")
        data = DataConfig(name, self.config.tokenizer, data_dir, cache_dir, self.config.problem)
        return open_corpus(data, progress, tokenizer=self.tokenizer)


def open_run(folder: str | Path) -> Run:
    """The finished model of a run or, while it is unfinished, its newest checkpoint that verifies."""
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise UserError(f"no run in {folder} (config.json is missing); name a folder that 'scse train --out' wrote")
    config, data = read_run_config(folder)
    for change in require_guests(config.guests, str(folder)):
        log.warning("%s", change)
    tokenizer = load_tokenizer(folder / "model")
    if tokenizer.digest != data.get("tokenizer"):
        raise UserError(f"{folder / 'model' / 'tokenizer.json'} is not the tokenizer of this run; restore it")
    if (folder / "model" / "config.json").is_file():
        model, step, file = load_model(folder / "model"), config.steps, folder / "model" / WEIGHTS_FILE
    else:
        model, step, file = _newest_model(folder, config)
    load_gate(folder, model, file)
    return Run(folder, config, model, tokenizer, step, file)


def _newest_model(folder: Path, config: TrainConfig) -> tuple[LoopedLM, int, Path]:
    store = CheckpointStore(folder / "checkpoints", keep=1)
    while checkpoint := store.newest():
        try:
            file = checkpoint.folder / WEIGHTS
            return build(config.model, file).eval(), checkpoint.step, file
        except UserError:
            if checkpoint.folder.exists():
                raise
            # A trainer at work has replaced it by a newer one.
    raise UserError(f"{folder} has no usable checkpoint yet; continue it with the 'scse train' that began it")
