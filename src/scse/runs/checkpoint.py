"""Checkpoints: a folder per step, written whole or not at all, verified by hash before it is believed.

    checkpoints/step-400/model.safetensors      the weights, by their names in the model
                         optimizer.safetensors  AdamW's two moments, as exp_avg.<name> and exp_avg_sq.<name>
                         state.json             step, validation perplexity and its depth, sha256 of the other
                                                files and of itself

Processes that each own a part of the tensors write a file each instead (`sharded.py`). Random streams and the position
in the data are functions of the step (`streams.py`, `batches.py`).
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from scse.errors import RunFailure, UserError
from scse.files import content_hash, file_hash, read_sealed, share, sync, write_sealed
from scse.layout import checkpoint_steps

if TYPE_CHECKING:
    import torch.distributed as dist

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
    """A verified checkpoint on disk. `digest` is the hash of its weights, or of all hashes where they are in shards."""

    folder: Path
    step: int
    validation: Validation | None
    digest: str = ""

    @property
    def in_shards(self) -> bool:
        return not (self.folder / WEIGHTS).is_file()

    @property
    def weights(self) -> Path:
        """The file that tells these weights from any others."""
        return self.folder / (STATE if self.in_shards else WEIGHTS)


@dataclass(frozen=True)
class TrainingTensors:
    """Weights by parameter name, and moments by exp_avg.<name> and exp_avg_sq.<name>: whole, or a process's part."""

    weights: dict[str, Tensor]
    moments: dict[str, Tensor]

    @property
    def all(self) -> dict[str, Tensor]:
        return {**self.weights, **self.moments}


class CheckpointStore:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def steps(self) -> list[int]:
        """Steps that have a checkpoint folder, newest first; nothing is said about their health."""
        return checkpoint_steps(self.folder)

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
        with self._failing(step):
            unfinished = self._begin(step)
            hashes = {}
            for name, part in ((WEIGHTS, tensors.weights), (MOMENTS, tensors.moments)):
                held = {key: tensor.detach().cpu().contiguous() for key, tensor in part.items()}
                save_file(held, unfinished / name, metadata={"format": "pt"})
                share(unfinished / name)
                sync(unfinished / name)
                hashes[name] = file_hash(unfinished / name)
            self._seal(step, validation, interim, hashes)

    def save_shards(
        self,
        step: int,
        tensors: TrainingTensors,
        validation: Validation | None,
        interim: bool = False,
        background: dist.ProcessGroup | None = None,
    ) -> Saving:
        """The same where every process owns a part of each tensor; all call it together, and the leader seals it.

        In the `background` if there is a group for that: see `sharded.write`.
        """
        from scse.runs.sharded import ShardWriter, write

        sealed = partial(self._seal, step, validation, interim)
        writer = ShardWriter(self._partial(step), partial(self._begin, step), sealed)
        with self._failing(step):
            return Saving(self, step, write(writer, tensors.all, background))

    def _partial(self, step: int) -> Path:
        return self.folder / f".step-{step}.partial"

    def _begin(self, step: int) -> Path:
        """An empty folder beside the place of a checkpoint."""
        shutil.rmtree(self._partial(step), ignore_errors=True)
        self._partial(step).mkdir(parents=True)
        return self._partial(step)

    def _seal(self, step: int, validation: Validation | None, interim: bool, hashes: Mapping[str, str]) -> None:
        """Say what the files are, and put them in their place."""
        final, unfinished = self.folder / f"step-{step}", self._partial(step)
        ppl, loops = (validation.ppl, validation.loops) if validation else (None, None)
        state = {"step": step, "validation_ppl": ppl, "validation_loops": loops, "files": dict(sorted(hashes.items()))}
        write_sealed(unfinished / STATE, FORMAT, {**state, **({INTERIM: True} if interim else {})})
        if final.exists():
            shutil.rmtree(final)
        os.replace(unfinished, final)
        sync(self.folder)
        self.prune()

    @contextmanager
    def _failing(self, step: int) -> Iterator[None]:
        """What cannot be written is removed and told in one line."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            # safetensors wraps the operating system's error in its own; the text still carries it.
            shutil.rmtree(self._partial(step), ignore_errors=True)
            raise RunFailure(self._write_failure(step, error)) from error

    def prune(self) -> None:
        """Keep the newest, and of those that are not interim the newest `keep` and the best by validation.

        What a killed writer left behind is dropped. Perplexities at different depths are not compared: the depth of the
        newest one counts.
        """
        steps = self.steps()
        lasting = [step for step in steps if not self._state(step).get(INTERIM)]
        scored = [(found, step) for step in lasting if (found := self._validation(step)) is not None]
        alike = [(found.ppl, step) for found, step in scored if found.loops == scored[0][0].loops]
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


class Saving:
    """A checkpoint that may still be on its way to the disk."""

    def __init__(self, store: CheckpointStore, step: int, pending: Any) -> None:
        self.store, self.step, self.pending = store, step, pending

    def wait(self) -> None:
        """Until it is there. All processes call it together."""
        from scse.runs.sharded import causes

        if self.pending is not None:
            with self.store._failing(self.step), causes():
                self.pending.result()


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
        hashes = {str(name): str(value) for name, value in state["files"].items()}
        digest = hashes[WEIGHTS] if WEIGHTS in hashes else content_hash(hashes)
        found = Checkpoint(folder, int(state["step"]), _validation_in(state), digest)
        if not hashes or (WEIGHTS in hashes) != (MOMENTS in hashes):
            raise ValueError("files are missing")
    except (KeyError, TypeError, ValueError, AttributeError):
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
    for path in folder.glob("*.safetensors"):
        if path.name not in hashes:
            raise UserError(f"{path} is not of this checkpoint: {STATE} does not know it")
    return found
