"""Weights and moments between a model with its optimiser and a checkpoint, sharded or not on either side."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

from scse.config.model import ModelConfig
from scse.errors import UserError
from scse.layout import CONFIG_FILE, WEIGHTS_FILE
from scse.model import LoopedLM
from scse.nn.without_storage import without_storage
from scse.persistence import build, save_model, verify_model, write_model
from scse.runs.checkpoint import MOMENTS, WEIGHTS, Checkpoint, TrainingTensors
from scse.runs.shards import is_shard

MOMENT_NAMES = ("exp_avg", "exp_avg_sq")
log = logging.getLogger("scse")


def collect(model: nn.Module, optimiser: torch.optim.Optimizer) -> TrainingTensors:
    """What a checkpoint holds, where it lies."""
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    moments = {
        f"{moment}.{name}": optimiser.state[parameter][moment]
        for name, parameter in model.named_parameters()
        if parameter in optimiser.state
        for moment in MOMENT_NAMES
    }
    return TrainingTensors(weights, moments)


def restore(checkpoint: Checkpoint, model: nn.Module, optimiser: torch.optim.Optimizer, taken: int) -> None:
    """Put a checkpoint's tensors into a model and its optimiser, bit for bit. A sharded model is filled by all
    processes together.

    `taken` counts the optimiser steps behind the moments, those of a run's parents included. No process holds more of
    the files than one tensor beside what it owns.
    """
    refuse_misfit(checkpoint.folder, model)
    for parameter in model.parameters():
        if parameter.requires_grad:
            state = optimiser.state[parameter]
            state["step"] = torch.tensor(float(taken), device=parameter.device)
            state.update({moment: torch.zeros_like(parameter) for moment in MOMENT_NAMES})
    sharded = any(is_shard(parameter) for parameter in model.parameters())
    targets = collect(model, optimiser)
    if sharded or checkpoint.in_shards:
        from scse.runs.sharded import read, shapes

        # A parameter that was frozen in the run this one begins from has no moments there.
        there = shapes(checkpoint.folder)
        read(checkpoint.folder, {name: t for name, t in targets.all.items() if name in there}, together=sharded)
        return
    for file, tensors in ((WEIGHTS, targets.weights), (MOMENTS, targets.moments)):
        with safe_open(checkpoint.folder / file, framework="pt") as stored:
            for name in tensors.keys() & set(stored.keys()):
                tensors[name].copy_(stored.get_tensor(name))


def refuse_misfit(folder: Path, model: nn.Module) -> None:
    """A checkpoint holds exactly the tensors of the model, or it is of another one."""
    found = _weight_shapes(folder)
    wanted = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    for name in sorted(found.keys() ^ wanted.keys()):
        raise UserError(f"{folder} does not belong to this model: tensor '{name}' is in only one of them")
    for name, shape in wanted.items():
        if found[name] != shape:
            raise UserError(f"{folder}: tensor '{name}' has shape {found[name]}, the model needs {shape}")


def _weight_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    if (folder / WEIGHTS).is_file():
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    from scse.runs.sharded import shapes

    return {name: shape for name, shape in shapes(folder).items() if not name.startswith((*_prefixes(),))}


def _prefixes() -> list[str]:
    return [f"{moment}." for moment in MOMENT_NAMES]


def model_of(checkpoint: Checkpoint, config: ModelConfig) -> LoopedLM:
    """The whole model of a checkpoint, in this process."""
    if not checkpoint.in_shards:
        return build(config, checkpoint.folder / WEIGHTS)
    from scse.runs.sharded import read

    with without_storage():
        blank = LoopedLM(config)
    refuse_misfit(checkpoint.folder, blank)
    model = LoopedLM(config)
    read(checkpoint.folder, dict(model.named_parameters()), together=False)
    return model


def export_model(checkpoint: Checkpoint, config: ModelConfig, folder: Path) -> None:
    """The weights of a checkpoint as a saved model. From shards it is put together without ever being held whole."""
    if not checkpoint.in_shards:
        save_model(build(config, checkpoint.folder / WEIGHTS), folder)
        return
    from scse.runs.sharded import consolidate

    names = list(_weight_shapes(checkpoint.folder))
    write_model(config, folder, lambda file: consolidate(checkpoint.folder, names, file))


def is_exported(model: Path) -> bool:
    """Whether the final model is there, as it was written. A damaged one is reported."""
    if not all((model / name).exists() for name in (CONFIG_FILE, WEIGHTS_FILE)):
        return False
    try:
        verify_model(model)
    except UserError as damage:
        log.warning("%s; writing it again from the last checkpoint", damage)
        return False
    return True
