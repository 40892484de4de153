"""One process or many: who does which part of a batch, and DDP. What a process owns alone is in `sharding.py`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scse.config.training import SHARDED, TrainConfig
from scse.errors import UserError
from scse.processes import World
from scse.runs.folder import stored_parts
from scse.training.objectives import Objective

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

log = logging.getLogger("scse")


# FSDP takes a second to import, which only those pay who use it: what is sharded is known by what it can do.
def is_sharded(module: nn.Module) -> TypeGuard[FSDPModule]:
    return hasattr(module, "unshard")


def shards(here: World, strategy: str) -> bool:
    """Whether a process owns a part of the weights only."""
    return here.size > 1 and strategy in SHARDED


def distribute(objective: Objective, strategy: str, world: World, precision: str) -> nn.Module:
    """Wrap for more than one process."""
    if shards(world, strategy):
        from scse.training.sharding import shard

        shard(objective, world, precision, replicated=strategy == "hsdp")
        return objective
    return objective if world.size == 1 else DistributedDataParallel(objective)


def shared_parts(config: TrainConfig, folder: Path, here: World) -> int:
    """Parts of a batch over all processes. N processes with one part each are one process with N parts.

    A run keeps the number it began with where the processes can share it: the masks of dropout follow it.
    """
    begun = here.from_leader(stored_parts(folder) if here.leads else None)
    parts = begun or config.micro_batches
    if parts % here.size:
        if begun and here.leads:
            about = "%d processes cannot share the %d parts of a batch; dropout goes on otherwise"
            log.warning(about, here.size, parts)
        parts *= here.size
    if config.batch % parts:
        raise UserError(
            f"a batch of {config.batch} sequences cannot be split evenly over {here.size} processes "
            f"with {config.micro_batches} micro-batches each; use a number of processes that divides it"
        )
    return parts


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
