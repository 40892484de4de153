"""Checkpoints in shards, through `torch.distributed.checkpoint`: every process writes and reads what it owns.

    checkpoints/step-400/shard-1-of-2.safetensors  the rows of weights and moments that the first process owns, and
                                                   where they begin in the whole
                         shard-2-of-2.safetensors
                         state.json                as for a checkpoint in whole tensors

The files are those of torch's `HuggingFaceStorageReader`, which takes whole tensors too: either kind of checkpoint is
read into any number of processes. Nothing here is pickled.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from scse.errors import UserError
from scse.files import file_hash, share, sync

PIECES = "DCP_SHARDING_INFO"  # where torch's reader looks for the offsets of what a file holds
OFFSETS = "saved_offsets"
_LENGTH = 8  # bytes that say how long the header of a safetensors file is


class ShardWriter(HuggingFaceStorageWriter):
    """Writes a shard per process into a folder that `begin` makes, and hands their hashes to `seal` when all are there.

    Tensors go to the file from where they lie: a CPU's are not copied.
    """

    def __init__(self, folder: Path, begin: Callable[[], object], seal: Callable[[dict[str, str]], None]) -> None:
        super().__init__(str(folder), save_distributed=True)
        self.folder, self.begin, self.seal = folder, begin, seal

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if is_coordinator:
            self.begin()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        names = (f"shard-{number}-of-{len(plans)}.safetensors" for number in range(1, len(plans) + 1))
        return [replace(plan, storage_data=name) for plan, name in zip(plans, names, strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        done: Future[list[WriteResult]] = Future()
        done.set_result(self._written(plan, planner) if plan.items else [])
        return done

    def _written(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        tensors, begins = {}, {}
        for item in plan.items:
            name, data = item.index.fqn, planner.resolve_data(item)
            assert isinstance(data, Tensor)
            assert name not in tensors, "a process owns one stretch of rows of a tensor"
            tensors[name] = data.detach().cpu().contiguous()
            begins[name] = {OFFSETS: list(item.index.offset or [0] * data.dim())}
        path = self.folder / plan.storage_data
        save_file(tensors, path, metadata={"format": "pt", PIECES: json.dumps(begins)})
        share(path)
        sync(path)
        about = (path.name, file_hash(path))
        sizes = [tensors[item.index.fqn].nbytes for item in plan.items]
        return [WriteResult(item.index, size, about) for item, size in zip(plan.items, sizes, strict=True)]

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        self.seal(dict(result.storage_data for written in results for result in written))


def write(writer: ShardWriter, tensors: Mapping[str, Tensor], background: dist.ProcessGroup | None) -> Any:
    """Write shards; all processes call it together. With a group of CPUs to talk over, tensors are copied to the host
    and written in the background; what is returned then has `result`, which waits.
    """
    if background is None:
        with causes():
            save(dict(tensors), storage_writer=writer)
        return None
    return async_save(dict(tensors), storage_writer=writer, process_group=background)


@contextmanager
def causes() -> Iterator[None]:
    """What went wrong on some process is raised on all of them, as what it was."""
    try:
        yield
    except CheckpointException as failed:
        found = [error for error, _ in failed.failures.values()]
        raise next((error for error in found if isinstance(error, OSError | SafetensorError)), found[0]) from None


def shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The tensors of a checkpoint of either kind, by name."""
    return {name: tuple(about.size) for name, about in _tensors(_metadata(folder)).items()}


def read(folder: Path, targets: Mapping[str, Tensor], together: bool) -> None:
    """Fill tensors, sharded or not, from a checkpoint of either kind: every process reads the rows that it holds.

    `together` says that all processes of the group do this.
    """
    try:
        with causes(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # a process by itself is meant
            load(
                {name: tensor.detach() for name, tensor in targets.items()},
                storage_reader=HuggingFaceStorageReader(str(folder)),
                no_dist=not together,
            )
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read {folder}: {error}") from None


def consolidate(folder: Path, names: list[str], target: Path) -> None:
    """Some tensors of a checkpoint in shards as one safetensors file; one piece of one tensor is held at a time."""
    metadata = _metadata(folder)
    tensors = _tensors(metadata)
    files = {(index.fqn, tuple(index.offset)): info.relative_path for index, info in metadata.storage_data.items()}
    pieces = {name: sorted(tuple(offset) for of, offset in files if of == name) for name in names}
    with target.open("wb") as out:
        out.write(_header({name: tensors[name] for name in sorted(names)}))
        for name in sorted(names):
            for offset in pieces[name]:
                with safe_open(files[name, offset], framework="pt") as file:
                    piece = file.get_tensor(name)
                if piece.numel():
                    out.write(piece.contiguous().flatten().view(torch.uint8).numpy().data)


def _header(tensors: Mapping[str, TensorStorageMetadata]) -> bytes:
    """What stands before the numbers of a safetensors file."""
    stated: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, about in tensors.items():
        begin, end = end, end + about.size.numel() * about.properties.dtype.itemsize
        kind = {torch.float32: "F32", torch.float64: "F64"}[about.properties.dtype]
        stated[name] = {"dtype": kind, "shape": list(about.size), "data_offsets": [begin, end]}
    text = json.dumps(stated, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH)
    return len(text).to_bytes(_LENGTH, "little") + text


def _tensors(metadata: Metadata) -> dict[str, TensorStorageMetadata]:
    stated = metadata.state_dict_metadata.items()
    return {name: about for name, about in stated if isinstance(about, TensorStorageMetadata)}


def _metadata(folder: Path) -> Metadata:
    try:
        return HuggingFaceStorageReader(str(folder)).read_metadata()
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read {folder}: {error}") from None
