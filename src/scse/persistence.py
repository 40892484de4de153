"""Models as a folder of config.json + model.safetensors."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from scse.config import ModelConfig
from scse.errors import UserError
from scse.files import read_json, replacing, write_json
from scse.model import LoopedLM

FORMAT = 1
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"


def save_model(model: LoopedLM, folder: str | Path) -> None:
    """Write the configuration and the weights."""
    folder = Path(folder)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with replacing(folder / WEIGHTS_FILE) as temporary:
        try:
            save_file(weights, temporary, metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(f"cannot write {folder / WEIGHTS_FILE}: {error}") from None
    write_json(folder / CONFIG_FILE, {"format": FORMAT, "model": model.config.to_dict()})


def load_model(folder: str | Path, device: str | torch.device = "cpu") -> LoopedLM:
    """The model of a folder written by `save_model`, in evaluation mode. No code of the folder is executed."""
    folder = Path(folder)
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(f"no {CONFIG_FILE} in {folder}; name a folder that holds a saved model")
    data = read_json(folder / CONFIG_FILE)
    if data.get("format") != FORMAT:
        raise UserError(f"{folder / CONFIG_FILE} has format {data.get('format')!r}; this version reads {FORMAT}")
    model = LoopedLM(ModelConfig.from_dict(data.get("model", {})))
    load_weights(model, folder / WEIGHTS_FILE)
    return model.to(device).eval()


def load_weights(model: torch.nn.Module, path: Path) -> None:
    """Load a safetensors file whose names, shapes and types must be exactly the model's."""
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read the weights in {path}: {error}") from None
    expected = model.state_dict()
    for name in expected.keys() ^ weights.keys():
        fault = "lacks" if name in expected else "has an unknown"
        raise UserError(f"{path} {fault} tensor '{name}'; it does not belong to this configuration")
    for name, tensor in expected.items():
        if tensor.shape != weights[name].shape:
            found, wanted = list(weights[name].shape), list(tensor.shape)
            raise UserError(f"{path}: tensor '{name}' has shape {found}, the configuration needs {wanted}")
        if tensor.dtype != weights[name].dtype:
            kinds = f"type {weights[name].dtype}, the configuration needs {tensor.dtype}"
            raise UserError(f"{path}: tensor '{name}' has {kinds}")
    model.load_state_dict(weights)
