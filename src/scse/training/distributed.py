"""One process or many: DDP around the loss. What each process owns alone is in `sharding.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeGuard

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scse.config.training import SHARDED
from scse.processes import World
from scse.training.objectives import Objective

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


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
