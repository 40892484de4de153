"""The processes that work on one run together: who we are among them, and what they tell each other."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from scse.devices import CPU, resolve_device
from scse.errors import RunFailure, UserError

T = TypeVar("T")

# How long processes wait for each other before they give up: longer than a leader validates, saves or opens its text,
# shorter than a night lost on a process that hangs. A large corpus is prepared beforehand (`scse data prepare`).
GROUP_TIMEOUT = timedelta(minutes=60)
SECONDS_BETWEEN_LOOKS = 0.02


@dataclass(frozen=True)
class World:
    """Who we are among the processes of a run. Started by `torchrun`, or alone."""

    rank: int
    size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def any(self, *flags: bool) -> list[bool]:
        """For each flag whether it is set on any process."""
        found = self.summed(torch.tensor(flags, dtype=torch.int64, device=self.device))
        return [count > 0 for count in found.tolist()]

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

    def exchange(self, said: dict[str, Any]) -> list[dict[str, Any]]:
        """What every process says, as JSON, by rank. Who is stopped while it waits for the others leaves at once."""
        if self.size == 1:
            return [said]
        content = torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8)
        lengths = [int(length) for length in self._gather(torch.tensor([len(content)]))]
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(content)] = content
        parts = zip(self._gather(padded), lengths, strict=True)
        return [json.loads(part[:length].numpy().tobytes()) for part, length in parts]

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        """A tensor of every process. Waiting in Python, where signals are heard, and not inside of torch."""
        sent = tensor.to(self.device)
        received = [torch.empty_like(sent) for _ in range(self.size)]
        try:
            waiting = dist.all_gather(received, sent, async_op=True)
            while not waiting.is_completed():
                time.sleep(SECONDS_BETWEEN_LOOKS)
            waiting.wait()
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise RunFailure(
                f"another process ended, or was waited for too long, in an evaluation ({reason})"
            ) from None
        return [part.cpu() for part in received]


ALONE = World(0, 1, CPU)


@contextlib.contextmanager
def world(device_name: str = "auto") -> Iterator[World]:
    """Join the process group that torchrun announces in the environment, if any; inside of a group, the same again.

    Of several processes on a machine with GPUs, each has its own.
    """
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
    if tasks > 1 and "WORLD_SIZE" not in os.environ:
        remedy = "use one task per node, with torchrun (docs/cluster.md), or srun -n 1"
        raise UserError(f"this is one of {tasks} tasks of srun, which would each do the same to one run; {remedy}")
    device = _own_device(device_name, size)
    joins = size > 1 and not dist.is_initialized()
    if joins:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=GROUP_TIMEOUT)
    # A process that fails leaves the group as it is: the others wait in it until this one has said why and is gone.
    yield World(rank, size, device)
    if joins:
        # Gloo's thread frees the tensors of its last exchange and needs the interpreter lock for that; the group's
        # destructor waits for the thread while holding the lock. Sleeping gives it up until the thread is idle.
        time.sleep(0.2)
        dist.destroy_process_group()


def _own_device(name: str, size: int) -> torch.device:
    """The device of this process, one of `size`."""
    device = resolve_device(name)
    if size > 1 and device.type == "cuda":  # pragma: no cover: needs a GPU
        if ":" in name:
            raise UserError(f"several processes cannot share {name}; leave --device out, or use cuda")
        device = resolve_device(f"cuda:{int(os.environ.get('LOCAL_RANK', '0'))}")
    if size > 1 and device.type == "mps":  # pragma: no cover: needs a Mac, and torch exchanges nothing there
        device = CPU
    if device.type == "cuda":  # pragma: no cover: needs a GPU
        torch.cuda.set_device(device)
    return device
