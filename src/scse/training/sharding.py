"""FSDP2: weights, gradients and moments divided over the processes, and drawn without anyone holding them all."""

from __future__ import annotations

import os
import warnings
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.func import functional_call

from scse.errors import UserError
from scse.model import LoopedLM
from scse.recurrence.base import Unit
from scse.recurrence.updates import UnsharedCore
from scse.runs.shards import fill, whole
from scse.training.objectives import Objective

if TYPE_CHECKING:
    from scse.processes import World


def shard(objective: Objective, here: World, precision: str, replicated: bool) -> None:
    """Divide a model over the processes; with `replicated`, over those of a machine, and every machine has all of it.

    Layers that a forward pass applies once (prelude, coda, unshared ones) are groups of their own: gathered when they
    are needed, in the precision of the products. Everything else is one group, gathered once a step and in float32: a
    group for the core would be gathered again at every loop, and what moves or reads the state is not to be rounded.
    """
    mesh = _mesh(here, replicated)
    kind = torch.bfloat16 if precision == "bfloat16" else None
    policy = MixedPrecisionPolicy(param_dtype=kind, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for layer in layers_of_their_own(objective.model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(objective, mesh=mesh)
    Gathering(objective)
    if here.device.type == "cpu":
        _pad_without_a_copy()


def copy_in_chunks(tensors: list[Tensor], dim: int, num_chunks: int, out: Tensor) -> None:
    """Row i of `out` holds the i-th of `num_chunks` parts of every tensor's rows, and zeros where a part is short.

    What `torch._chunk_cat` does, without a copy of its own: on CPUs that pads a tensor whose rows do not divide by the
    number of processes in a new one, and GPT-2's 50,257 rows are most of a small model.
    """
    assert dim == 0
    at = 0
    for tensor in tensors:
        rows = -(-len(tensor) // num_chunks)
        size = rows * tensor[0].numel()
        for place, start in zip(out[:, at : at + size], range(0, rows * num_chunks, rows), strict=True):
            part = tensor[start : start + rows]
            place[: part.numel()].view(part.shape).copy_(part)
            place[part.numel() :].zero_()
        at += size


@cache
def _pad_without_a_copy() -> torch.library.Library:
    """Let FSDP2 lay out gradients before it adds them up with `copy_in_chunks`, as long as the result lives."""
    kernels = torch.library.Library("fsdp", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
        kernels.impl("chunk_cat", copy_in_chunks, "CPU")
    return kernels


class Gathering:
    """When the weights of a divided objective are gathered, and when they are let go.

    Gathered within its forward pass, a group keeps the buffer it arrived in until the next group arrives, and after the
    last one nothing does: all of it would be held twice. Gathered before, the buffer goes at once. They are let go when
    the gradient of every embedding of the pass has come: nothing that is left needs weights, and the gradient of the
    table itself, as large as the table, then finds room.
    """

    def __init__(self, objective: Objective) -> None:
        assert isinstance(objective, FSDPModule)
        self.sharded: FSDPModule = objective
        self.awaited = 0
        objective.register_forward_pre_hook(self._begin, prepend=True)
        objective.model.tokens.register_forward_hook(self._embedded)

    def _begin(self, *_: object) -> None:
        self.awaited = 0
        self.sharded.unshard()

    def _embedded(self, _: nn.Module, __: object, embedded: Tensor) -> None:
        if embedded.requires_grad:
            self.awaited += 1
            embedded.register_hook(self._came)

    def _came(self, _: Tensor) -> None:
        self.awaited -= 1
        if not self.awaited:
            self.sharded.reshard()


def layers_of_their_own(model: LoopedLM) -> list[nn.Module]:
    """The layers that a step applies once."""
    core = model.recurrence.core
    return [*model.prelude, *(core.blocks if isinstance(core, UnsharedCore) else ()), *model.coda]


def _mesh(here: World, replicated: bool) -> DeviceMesh:
    """Processes by machine, or in one row."""
    kind = here.device.type
    if not replicated:
        return init_device_mesh(kind, (here.size,), mesh_dim_names=("shard",))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", here.size))
    if here.size % local:
        raise UserError(f"hsdp needs as many processes on every machine, and {local} do not divide {here.size}")
    return init_device_mesh(kind, (here.size // local, local), mesh_dim_names=("replicate", "shard"))


def give_storage(model: LoopedLM, device: torch.device) -> None:
    """Room for the part of each matrix that this process owns."""
    for module in model.modules():
        if any(parameter.is_meta for parameter in module.parameters(recurse=False)):
            module.to_empty(device=device, recurse=False)


def draw(model: LoopedLM, seed: int) -> None:
    """The start values of the same model in one process, bit for bit; one matrix is whole at a time."""
    model.init_weights(seed, put=fill, start=_start)


class _Starting(nn.Module):
    def __init__(self, unit: Unit) -> None:
        super().__init__()
        self.unit = unit

    def forward(self) -> None:
        self.unit.start_values()


@torch.no_grad()
def _start(unit: Unit) -> None:
    """Let a unit that has start values of its own set them on whole tensors, and keep what is owned of them."""
    if type(unit).start_values is Unit.start_values:
        return
    owned = dict(unit.named_parameters(prefix="unit"))
    begun = {name: whole(parameter) for name, parameter in owned.items()}
    functional_call(_Starting(unit), begun, ())
    for name, parameter in owned.items():
        fill(parameter, begun[name])
