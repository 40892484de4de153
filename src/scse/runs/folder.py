"""The folder of a run: who may write it, what it was started with, and its metrics.

config.json      the resolved configuration, the hashes of the data, revision and versions
metrics.jsonl    one line per step and per validation
checkpoints/     see checkpoint.py
model/           the tokenizer and, at the end, the final model
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from scse.config import TrainConfig, differences
from scse.errors import UserError
from scse.files import put, read_json, read_sealed, sweep, write_sealed
from scse.layout import CHECKPOINTS, CONFIG_FILE, METRICS_FILE, MODEL, WEIGHTS_FILE
from scse.locks import ALONE, AT_ONCE, take_lock
from scse.provenance import provenance

FORMAT = 2
PARTS = "parts"


class RunInUse(UserError):
    """Another process holds the run."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the run for this process; a second trainer is refused. The lock goes with the process, also on SIGKILL."""
    handle = _take(folder)
    try:
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        for touched in (folder, folder / MODEL):
            sweep(touched)
        yield
    finally:
        if not (folder / CONFIG_FILE).exists():
            _leave_nothing(folder)
        os.close(handle)


def _take(folder: Path) -> int:
    """The run's lock file, open and held."""
    path = folder / ".lock"
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(f"cannot write the run folder {folder}: {error.strerror}; choose another --out") from None
        try:
            taken = take_lock(handle, path, ALONE | AT_ONCE)
        except UserError:
            os.close(handle)
            _leave_nothing(folder)
            raise
        if not taken:
            holder = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            remedy = "wait for it or choose another --out"
            raise RunInUse(f"{folder} is in use by another trainer (process {holder}); {remedy}") from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        os.close(handle)  # the holder before took the file away; hold the one that is there now


def _leave_nothing(folder: Path) -> None:
    """A run that never began: take away the lock, and the folder if there is nothing else in it."""
    with contextlib.suppress(OSError):
        (folder / ".lock").unlink()
        folder.rmdir()


def begin_or_continue(
    folder: Path, wanted: TrainConfig, data: Mapping[str, str], parts: int, compiled: bool = False
) -> None:
    """Write the configuration of a new run, or check that an existing one is continued and not altered.

    `parts` of a batch are written where several processes made them more than the run's own micro-batches, and that
    steps are `compiled` where they are: it may be otherwise when the run is continued.
    """
    path = folder / CONFIG_FILE
    if not path.exists():
        if any(folder.glob(f"{CHECKPOINTS}/step-*")):
            raise UserError(f"{folder} holds checkpoints but no config.json; restore it or choose another --out")
        begun_with = {"train": wanted.to_dict(), "data": dict(data), "provenance": provenance()}
        divided = {} if parts == wanted.micro_batches else {PARTS: parts}
        rounded = {"compiled": True} if compiled else {}
        write_sealed(path, FORMAT, {**begun_with, **divided, **rounded})
        return
    begun, begun_data = read_run_config(folder)
    refuse_changes(folder, {**begun.to_dict(), "data": begun_data}, {**wanted.to_dict(), "data": dict(data)})


def refuse_changes(folder: Path, begun: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """A run goes on as it began, or not at all."""
    changed = differences(begun, wanted)
    if not changed:
        return
    longer = any(change.startswith("steps: ") for change in changed)
    raise UserError(
        f"{folder} was started with other settings ({'; '.join(changed)}); "
        "repeat the command it was started with, or choose another --out"
        + (f"; to train on from where it ended: scse train --from {folder} --steps MORE --out NEW" if longer else "")
    )


def read_run_config(folder: Path) -> tuple[TrainConfig, dict[str, Any]]:
    """What a run was started with, and the hashes of its data."""
    if "model_type" in read_json(folder / CONFIG_FILE):
        raise UserError(f"{folder} was exported for transformers and is no run; name the run, or use 'scse serve'")
    stored = read_sealed(folder / CONFIG_FILE, FORMAT, upgrade=dict)
    train, data = stored.get("train"), stored.get("data")
    if train is None and (folder / WEIGHTS_FILE).exists():
        raise UserError(f"{folder} holds a model alone and is no run; name its run, or import without --weights-only")
    if not (isinstance(train, dict) and isinstance(data, dict)):
        raise UserError(f"{folder / CONFIG_FILE} holds values of the wrong type; restore it")
    return TrainConfig.from_dict(train), data


def stored_precision(folder: Path) -> str | None:
    """The precision an existing run was begun with."""
    return read_run_config(folder)[0].precision if (folder / CONFIG_FILE).exists() else None


def stored_parts(folder: Path) -> int | None:
    """Into how many parts an existing run divides its batches: each part has dropout masks of its own."""
    path = folder / CONFIG_FILE
    if not path.exists():
        return None
    parts = read_sealed(path, FORMAT, upgrade=dict).get(PARTS)
    return parts if isinstance(parts, int) else read_run_config(folder)[0].micro_batches


class MetricsSink(Protocol):
    def write(self, row: Mapping[str, Any]) -> None: ...


class NoMetrics:
    """For the processes that do not lead."""

    def write(self, row: Mapping[str, Any]) -> None:
        pass


class Metrics:
    """metrics.jsonl, and TensorBoard where asked. On resume, what lies beyond the checkpoint is dropped."""

    def __init__(self, folder: Path, step: int, tensorboard: bool) -> None:
        self.path = folder / METRICS_FILE
        self._drop_after(step)
        self.board = _tensorboard(folder, step) if tensorboard else None
        self.stream = self.path.open("a", encoding="utf-8")

    def write(self, row: Mapping[str, Any]) -> None:
        self.stream.write(json.dumps(row) + "\n")
        self.stream.flush()
        if self.board is not None:
            for name, value in row.items():
                if name != "step":
                    self.board.add_scalar(name, value, row["step"])

    def _drop_after(self, step: int) -> None:
        if not self.path.exists():
            return
        kept = [
            line for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines() if _step(line) <= step
        ]
        put(self.path, "".join(f"{line}\n" for line in kept))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.stream.close()
        if self.board is not None:
            self.board.close()


def _step(line: str) -> float:
    """The step of a metrics line; a torn or foreign line counts as beyond everything."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _tensorboard(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("TensorBoard is not installed; run: pip install 'scse[tensorboard]'") from None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=step)
