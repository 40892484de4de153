"""Files written whole or not at all, and models as a folder of config.json + model.safetensors."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from scse.config import ModelConfig
from scse.errors import UserError
from scse.model import LoopedLM

FORMAT = 1
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it is synced and takes the place of `path` at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, data: Any) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file, or one line that says what is wrong with it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path} is not valid JSON ({error}); restore it or write it again") from None
    if not isinstance(data, dict):
        raise UserError(f"{path} must hold a JSON object, not {type(data).__name__}")
    return data


def save_model(model: LoopedLM, folder: str | Path) -> None:
    """Write the configuration and the weights."""
    folder = Path(folder)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with replacing(folder / WEIGHTS_FILE) as temporary:
        save_file(weights, temporary, metadata={"format": "pt"})
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
    model.load_state_dict(weights)
