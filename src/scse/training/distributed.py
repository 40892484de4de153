"""One process or many: the process group, and DDP around the loss. What each process owns alone is in `sharding.py`."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from scse.config.training import SHARDED
from scse.devices import CPU, resolve_device
from scse.errors import UserError
from scse.training.objectives import Objective

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

T = TypeVar("T")

# How long processes wait for each other before they give up: longer than a leader validates, saves or opens its text,
# shorter than a night lost on a process that hangs. A large corpus is prepared beforehand (`scse data prepare`).
GROUP_TIMEOUT = timedelta(minutes=60)


# FSDP takes a second to import, which only those pay who use it: what is sharded is known by what it can do.
def is_sharded(module: nn.Module) -> TypeGuard[FSDPModule]:
    return hasattr(module, "unshard")


@dataclass(frozen=True)
class World:
    """Who we are among the processes of a run. Started by `torchrun`, or alone."""

    rank: int
    size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def shards(self, strategy: str) -> bool:
        """Whether a process owns a part of the weights only."""
        return self.size > 1 and strategy in SHARDED

    def any(self, *flags: bool) -> list[bool]:
        """For each flag whether it is set on any process."""
        return [total > 0 for total in self._totals(map(float, flags))]

    def total(self, value: float) -> float:
        """The sum of a number over all processes."""
        return self._totals([value])[0]

    def _totals(self, values: Iterable[float]) -> list[float]:
        tensor = torch.tensor(list(values), dtype=torch.float64, device=self.device)
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor.tolist()

    def summed(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all processes, where it lies."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def from_leader(self, value: T) -> T:
        """The leader's value, on all processes; also a point where all of them meet."""
        if self.size == 1:
            return value
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=0)
        received: T = box[0]
        return received


@contextlib.contextmanager
def world(device_name: str = "auto") -> Iterator[World]:
    """Join the process group that torchrun announces in the environment, if any.

    Of several processes on a machine with GPUs, each has its own.
    """
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
    if tasks > 1 and "WORLD_SIZE" not in os.environ:
        remedy = "use one task per node, with torchrun (docs/cluster.md), or srun -n 1"
        raise UserError(f"this is one of {tasks} tasks of srun, which would each train the same run; {remedy}")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = resolve_device(device_name)
    if size > 1 and device.type == "cuda":  # pragma: no cover: needs a GPU
        if ":" in device_name:
            raise UserError(f"several processes cannot share {device_name}; leave --device out, or use cuda")
        device = resolve_device(f"cuda:{local}")
    if size > 1 and device.type == "mps":  # pragma: no cover: needs a Mac, and torch exchanges nothing there
        device = CPU
    if device.type == "cuda":  # pragma: no cover: needs a GPU
        torch.cuda.set_device(device)
    if size > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=GROUP_TIMEOUT)
    # A process that fails leaves the group as it is: the others wait in it until this one has said why and is gone.
    yield World(rank, size, device)
    if size > 1:
        # Gloo's thread frees the tensors of its last exchange and needs the interpreter lock for that; the group's
        # destructor waits for the thread while holding the lock. Sleeping gives it up until the thread is idle.
        time.sleep(0.2)
        dist.destroy_process_group()


def distribute(objective: Objective, strategy: str, world: World, precision: str) -> nn.Module:
    """Wrap for more than one process."""
    if world.shards(strategy):
        from scse.training.sharding import shard

        shard(objective, world, precision, replicated=strategy == "hsdp")
        return objective
    return objective if world.size == 1 else DistributedDataParallel(objective)


@contextlib.contextmanager
def accumulating(module: nn.Module, last: bool) -> Iterator[None]:
    """Exchange gradients on the last micro-batch of a step only."""
    if is_sharded(module):
        module.set_requires_gradient_sync(last)
        yield
    elif isinstance(module, DistributedDataParallel) and not last:
        with module.no_sync():
            yield
    else:
        yield


@contextlib.contextmanager
def gathered(module: nn.Module) -> Iterator[None]:
    """The weights that every step needs whole on every process, for evaluation outside the wrapped forward.

    Layers with a group of their own are gathered when they are used, so all processes must do the same.
    """
    if is_sharded(module):
        module.unshard()
        try:
            yield
        finally:
            module.reshard()
    else:
        yield
