"""Checkpoints: a folder per step, written whole or not at all, verified by hash before it is believed.

    checkpoints/step-400/model.safetensors      the weights, by their names in the model
                         optimizer.safetensors  AdamW's two moments, as exp_avg.<name> and exp_avg_sq.<name>
                         state.json             step, validation perplexity and its depth, sha256 of the other two
                                                files and of itself

Random streams and the position in the data are functions of the step (`streams.py`, `batches.py`).
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from scse.errors import RunFailure, UserError
from scse.files import file_hash, read_sealed, share, sync, write_sealed
from scse.runs.shards import fill, whole

FORMAT = 2
UNSTATED_LOOPS = 8  # of every validation before checkpoints said theirs
WEIGHTS, MOMENTS, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
INTERIM = "interim"
log = logging.getLogger("scse")


@dataclass(frozen=True)
class Validation:
    """A perplexity on the validation split, and the number of loops at which it was measured."""

    ppl: float
    loops: int


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint on disk."""

    folder: Path
    step: int
    validation: Validation | None


class CheckpointStore:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def steps(self) -> list[int]:
        """Steps that have a checkpoint folder, newest first; nothing is said about their health."""
        names = (path.name for path in self.folder.glob("step-*"))
        return sorted((int(n[5:]) for n in names if n[5:].isascii() and n[5:].isdigit()), reverse=True)

    def newest(self, set_aside: bool = False) -> Checkpoint | None:
        """The newest checkpoint that verifies. A damaged one is reported and the one before it is used.

        With `set_aside` (for whoever goes on to write here) damaged ones are renamed, so that they no longer count
        among the newest.
        """
        for step in self.steps():
            folder = self.folder / f"step-{step}"
            try:
                return verify(folder)
            except UserError as damage:
                if not folder.exists():
                    continue  # the trainer pruned it while we looked
                log.warning("checkpoint step-%d is damaged (%s); falling back to the one before", step, damage)
                if set_aside:
                    damaged = self.folder / f"damaged-step-{step}"
                    shutil.rmtree(damaged, ignore_errors=True)
                    folder.rename(damaged)
        return None

    def save(self, step: int, tensors: TrainingTensors, validation: Validation | None, interim: bool = False) -> None:
        """Write a checkpoint and prune the old ones. A full disk leaves those before it as they were.

        One that is `interim` (a stop, or much time since the last) goes as soon as there is a newer one: however often
        a run is disturbed, it ends with the checkpoints of an undisturbed one.
        """
        final = self.folder / f"step-{step}"
        partial = self.folder / f".step-{step}.partial"
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            save_file(tensors.weights, partial / WEIGHTS, metadata={"format": "pt"})
            save_file(tensors.moments, partial / MOMENTS, metadata={"format": "pt"})
            hashes = {}
            for name in (WEIGHTS, MOMENTS):
                share(partial / name)
                sync(partial / name)
                hashes[name] = file_hash(partial / name)
            ppl, loops = (validation.ppl, validation.loops) if validation else (None, None)
            state = {"step": step, "validation_ppl": ppl, "validation_loops": loops, "files": hashes}
            write_sealed(partial / STATE, FORMAT, {**state, **({INTERIM: True} if interim else {})})
            if final.exists():
                shutil.rmtree(final)
            os.replace(partial, final)
            sync(self.folder)
        except (OSError, SafetensorError) as error:
            # safetensors wraps the operating system's error in its own; the text still carries it.
            shutil.rmtree(partial, ignore_errors=True)
            raise RunFailure(self._write_failure(step, error)) from error
        self.prune()

    def prune(self) -> None:
        """Keep the newest, the newest `keep` that are not interim, and the best by validation.

        What a killed writer left behind is dropped. Perplexities at different depths are not compared: the depth of the
        newest one counts.
        """
        steps = self.steps()
        scored = [(found, step) for step in steps if (found := self._validation(step)) is not None]
        alike = [(found.ppl, step) for found, step in scored if found.loops == scored[0][0].loops]
        lasting = [step for step in steps if not self._state(step).get(INTERIM)]
        kept = {*steps[:1], *lasting[: self.keep]} | ({min(alike)[1]} if alike else set())
        for step in steps:
            if step not in kept:
                # Renamed first, so that no reader meets half a checkpoint.
                (self.folder / f"step-{step}").rename(self.folder / f".step-{step}.partial")
        for left_over in self.folder.glob(".step-*.partial"):
            shutil.rmtree(left_over, ignore_errors=True)

    def _state(self, step: int) -> dict[str, Any]:
        try:
            return read_sealed(self.folder / f"step-{step}" / STATE, FORMAT, from_format_1)
        except UserError:
            return {}

    def _validation(self, step: int) -> Validation | None:
        state = self._state(step)
        return _validation_in(state) if state else None

    def _write_failure(self, step: int, error: Exception) -> str:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        full = (isinstance(error, OSError) and error.errno == errno.ENOSPC) or "No space left" in str(error)
        remedy = "free some space" if full else "mend this"
        older = self.steps()
        intact = f"the checkpoint before it (step-{older[0]}) is intact" if older else "no checkpoint was lost"
        return (
            f"cannot write checkpoint step-{step} in {self.folder}: {reason}; {intact}. "
            f"{remedy.capitalize()} and run the same command again"
        )


@dataclass(frozen=True)
class TrainingTensors:
    """Weights and optimiser moments as whole CPU tensors by parameter name."""

    weights: dict[str, Tensor]
    moments: dict[str, Tensor]


def collect(model: nn.Module, optimiser: torch.optim.Optimizer, keep: bool = True) -> TrainingTensors:
    """Gather what a checkpoint holds. All processes must call it together; those that do not `keep` it drop each tensor
    as soon as it has been gathered.
    """
    moments = (
        (f"{moment}.{name}", optimiser.state[parameter][moment])
        for name, parameter in model.named_parameters()
        if parameter in optimiser.state
        for moment in ("exp_avg", "exp_avg_sq")
    )
    return TrainingTensors(_gathered(model.named_parameters(), keep), _gathered(moments, keep))


def _gathered(tensors: Iterable[tuple[str, Tensor]], keep: bool) -> dict[str, Tensor]:
    found = {}
    for name, tensor in tensors:
        gathered = whole(tensor)
        if keep:
            found[name] = gathered
    return found


def restore(checkpoint: Checkpoint, model: nn.Module, optimiser: torch.optim.Optimizer, taken: int) -> None:
    """Put a checkpoint's tensors into a model and its optimiser, sharded or not, bit for bit.

    `taken` counts the optimiser steps behind the moments, those of a run's parents included. The files are read tensor
    by tensor: no process holds more of them than one beside what it owns.
    """
    refuse_misfit(checkpoint.folder, model)
    with (
        safe_open(checkpoint.folder / WEIGHTS, framework="pt") as weights,
        safe_open(checkpoint.folder / MOMENTS, framework="pt") as moments,
    ):
        kept = set(moments.keys())
        for name, parameter in model.named_parameters():
            fill(parameter, weights.get_tensor(name))
            if not parameter.requires_grad:
                continue
            state = optimiser.state[parameter]
            state["step"] = torch.tensor(float(taken), device=parameter.device)
            for moment in ("exp_avg", "exp_avg_sq"):
                state[moment] = torch.zeros_like(parameter)
                # A parameter that was frozen in the run this one begins from has none there.
                if f"{moment}.{name}" in kept:
                    fill(state[moment], moments.get_tensor(f"{moment}.{name}"))


def refuse_misfit(folder: Path, model: nn.Module) -> None:
    """A checkpoint holds exactly the tensors of the model, or it is of another one."""
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    wanted = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    for name in sorted(found.keys() ^ wanted.keys()):
        raise UserError(f"{folder} does not belong to this model: tensor '{name}' is in only one of them")
    for name, shape in wanted.items():
        if found[name] != shape:
            raise UserError(f"{folder}: tensor '{name}' has shape {found[name]}, the model needs {shape}")


def from_format_1(state: dict[str, Any]) -> dict[str, Any]:
    """The hashes of a checkpoint's files were called 'sha256'."""
    return {**{name: value for name, value in state.items() if name != "sha256"}, "files": state["sha256"]}


def _validation_in(state: Mapping[str, Any]) -> Validation | None:
    ppl = state["validation_ppl"]
    return None if ppl is None else Validation(float(ppl), int(state.get("validation_loops", UNSTATED_LOOPS)))


def verify(folder: Path) -> Checkpoint:
    """The checkpoint in a folder, all hashes checked; a `UserError` names what is wrong."""
    state = read_sealed(folder / STATE, FORMAT, from_format_1)
    try:
        found = Checkpoint(folder, int(state["step"]), _validation_in(state))
        hashes = {name: str(state["files"][name]) for name in (WEIGHTS, MOMENTS)}
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{folder / STATE} does not say what a checkpoint must say") from None
    if folder.name != f"step-{found.step}":
        raise UserError(f"{folder / STATE} says step {found.step}")
    for name, stated in hashes.items():
        try:
            digest = file_hash(folder / name)
        except OSError as error:
            raise UserError(f"cannot read {folder / name}: {error.strerror}") from None
        if digest != stated:
            raise UserError(f"{folder / name} does not have the hash written in {STATE}")
    return found
