"""A run opened for evaluation: its model, its tokenizer, and what it was trained with."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scse.compiling import OFF
from scse.config import TrainConfig
from scse.data import Corpus, DataConfig, Tokenizer, load_tokenizer, open_corpus
from scse.devices import compiles, device_name, resolve_device
from scse.errors import UserError, checked_choice
from scse.files import expand, file_hash
from scse.layout import CHECKPOINTS, CONFIG_FILE, MODEL, TOKENIZER_FILE, WEIGHTS_FILE
from scse.model import LoopedLM
from scse.persistence import load_model
from scse.precision import EXACT, INFERENCE
from scse.problems import PROBLEMS
from scse.processes import ALONE, World
from scse.registry import require_guests
from scse.runs.checkpoint import CheckpointStore
from scse.runs.exits import load_gate
from scse.runs.folder import read_run_config
from scse.runs.partial import Partial
from scse.runs.restoring import model_of

log = logging.getLogger("scse")


@dataclass(frozen=True)
class Run:
    """`step` is the number of optimiser steps behind the weights, `weights` their file (or the one that names it).

    `here` is this process among those that evaluate the run together.
    """

    folder: Path
    config: TrainConfig
    model: LoopedLM
    tokenizer: Tokenizer
    step: int
    weights: Path
    here: World = ALONE

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def precision(self) -> str:
        """Of the matrix products."""
        return self.model.precision

    def inference(self) -> AbstractContextManager[object]:
        """Within it, the model computes in the precision that was asked for."""
        return self.model.inference()

    def facts(self) -> dict[str, str | bool]:
        """Where it computes, for records, and whether compiled."""
        compiled = {"compiled": True} if self.model.compiled else {}
        return {"device": str(self.device), "device_name": device_name(self.device), **compiled}

    def partial(self, asked: Mapping[str, Any]) -> Partial:
        """Where an evaluation of these weights that asks this may have stopped before."""
        weights = {"precision": self.precision, "weights": file_hash(self.weights)}
        # Several processes compute on a device each, and all must mean the same evaluation.
        place = {"device": self.device.type} if self.here.size > 1 else {}
        return Partial(self.folder, {**asked, **weights, **self.facts(), **place}, self.here)

    def check_reads(self, name: str) -> None:
        """An error for text where the run knows the words of a problem alone, and for another problem than its own."""
        own = self.config.corpus
        if name != own and (name in PROBLEMS or own in PROBLEMS):
            raise UserError(f"{self.folder} was trained on {own} and cannot read {name}; train a run on it")

    def corpus(self, name: str | None, data_dir: str | None, cache_dir: str | None, progress: bool = True) -> Corpus:
        """A corpus (by default the run's own) as tokens of the run's tokenizer."""
        name = name or self.config.corpus
        self.check_reads(name)
        data = DataConfig(name, self.config.tokenizer, data_dir, cache_dir, self.config.problem)
        return open_corpus(data, progress, tokenizer=self.tokenizer)


def open_run(
    folder: str | Path,
    device: str | torch.device = "auto",
    precision: str = EXACT,
    *,
    float64: bool = False,
    compiled: str | bool = OFF,
    here: World = ALONE,
) -> Run:
    """The finished model of a run or, while it is unfinished, its newest checkpoint that verifies.

    On a device by name; 'auto' is the accelerator where there is one, and `float64` says that such numbers are needed.
    With `compiled` ('on', 'off', 'auto', or yes and no), the step is compiled when it is first taken. `here` is one of
    several processes that evaluate the run together.
    """
    folder, place = expand(folder), resolve_device(device, float64)
    checked_choice("precision", precision, INFERENCE)
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(f"no run in {folder} (config.json is missing); name a folder that 'scse train --out' wrote")
    config, data = read_run_config(folder)
    for change in require_guests(config.guests, str(folder)):
        log.warning("%s", change)
    tokenizer = load_tokenizer(folder / MODEL)
    if tokenizer.digest != data.get("tokenizer"):
        raise UserError(f"{folder / MODEL / TOKENIZER_FILE} is not the tokenizer of this run; restore it")
    if (folder / MODEL / CONFIG_FILE).is_file():
        model, step, file = load_model(folder / MODEL), config.steps, folder / MODEL / WEIGHTS_FILE
    else:
        model, step, file = _newest_model(folder, config)
        if here.leads:
            log.warning("%s is not finished: step %d of %d is what is read", folder, step, config.steps)
    load_gate(folder, model, file)
    if compiles(compiled, place):
        model.compile_step()
    model.to(place).lay_out(precision)
    return Run(folder, config, model, tokenizer, step, file, here)


def _newest_model(folder: Path, config: TrainConfig) -> tuple[LoopedLM, int, Path]:
    store = CheckpointStore(folder / CHECKPOINTS, keep=1)
    while checkpoint := store.newest():
        try:
            return model_of(checkpoint, config.model).eval(), checkpoint.step, checkpoint.weights
        except UserError:
            if checkpoint.folder.exists():
                raise
            # A trainer at work has replaced it by a newer one.
    raise UserError(f"{folder} has no usable checkpoint yet; continue it with the 'scse train' that began it")
