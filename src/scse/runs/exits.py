"""The exit gate that was trained on a finished model, beside it in the run's folder: `exit/gate.safetensors`.

It changes nothing that the model computes, so the model and its records stay as they are.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from scse.errors import UserError
from scse.files import file_hash, read_sealed, replacing, write_sealed
from scse.model import LoopedLM
from scse.recurrence.reading import MotionGate

log = logging.getLogger("scse")

FORMAT = 1
FOLDER = "exit"
GATE_FILE = "gate.safetensors"
ABOUT_FILE = "config.json"


def attach_gate(model: LoopedLM, gate: MotionGate) -> None:
    """Give a model the gate; from now on it is part of its configuration and of what an export holds."""
    gate.requires_grad_(False)
    model.recurrence.exit = gate
    model.config = replace(model.config, shape=replace(model.config.shape, gate=True))


def save_gate(run: Path, gate: MotionGate, weights: Path, about: dict[str, Any]) -> None:
    """Write a gate that was trained on the model whose weights are in this file."""
    folder = run / FOLDER
    folder.mkdir(exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in gate.state_dict().items()}
    with replacing(folder / GATE_FILE) as temporary:
        save_file(tensors, temporary)
    stated = {**about, "model": file_hash(weights), "gate": file_hash(folder / GATE_FILE)}
    write_sealed(folder / ABOUT_FILE, FORMAT, stated)


def load_gate(run: Path, model: LoopedLM, weights: Path) -> None:
    """Attach the gate of a run, if it has one that was trained on these weights; another is reported and left out."""
    folder = run / FOLDER
    if not (folder / ABOUT_FILE).is_file():
        return
    stated = read_sealed(folder / ABOUT_FILE, FORMAT)
    if stated.get("model") != file_hash(weights):
        log.warning("%s was trained on other weights than the run has now; train it again: scse train-exit", folder)
        return
    gate = MotionGate(model.config.shape)
    try:
        if file_hash(folder / GATE_FILE) != stated.get("gate"):
            raise UserError(f"{folder / GATE_FILE} is damaged; train it again: scse train-exit {run}")
        gate.load_state_dict(load_file(folder / GATE_FILE))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise UserError(f"cannot read {folder / GATE_FILE}: {error}; train it again: scse train-exit {run}") from None
    attach_gate(model, gate.to(model.tokens.weight.device))
