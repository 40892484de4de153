"""Whole tensors in and out of shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


# FSDP takes a second to import, which only those pay who use it: what is sharded is known by what it can do.
def is_shard(tensor: Tensor) -> TypeGuard[DTensor]:
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """A parameter or optimiser state as one ordinary tensor on the CPU. All processes must call it together."""
    full = tensor.full_tensor() if is_shard(tensor) else tensor
    return full.detach().cpu().contiguous()


@torch.no_grad()
def fill(target: Tensor, value: Tensor) -> None:
    """Write a whole tensor into a parameter or state, each process its own shard."""
    if is_shard(target):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements, src_data_rank=None)
    target.copy_(value)
