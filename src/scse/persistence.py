"""Models as a folder of config.json + model.safetensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from scse.config.model import ModelConfig
from scse.errors import UserError
from scse.files import file_hash, read_sealed, replacing, write_sealed
from scse.layout import CONFIG_FILE, WEIGHTS_FILE
from scse.model import LoopedLM
from scse.nn.without_storage import without_storage

FORMAT = 2
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def save_model(model: LoopedLM, folder: str | Path) -> None:
    """Write the weights, then the configuration, which carries the hash of both."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    write_model(model.config, Path(folder), lambda file: save_file(weights, file, metadata={"format": "pt"}))


def write_model(config: ModelConfig, folder: Path, write: Callable[[Path], None]) -> None:
    """The same with weights that `write` puts into the file it is given."""
    with replacing(folder / WEIGHTS_FILE) as temporary:
        try:
            write(temporary)
        except SafetensorError as error:
            raise OSError(f"cannot write {folder / WEIGHTS_FILE}: {error}") from None
    stated = {"model": config.to_dict(), "weights": file_hash(folder / WEIGHTS_FILE)}
    write_sealed(folder / CONFIG_FILE, FORMAT, stated)


def load_model(folder: str | Path, device: str | torch.device = "cpu") -> LoopedLM:
    """The model of a folder written by `save_model`, in evaluation mode. No code of the folder is executed."""
    folder = Path(folder)
    return build(verify_model(folder), folder / WEIGHTS_FILE).to(device).eval()


def verify_model(folder: Path) -> ModelConfig:
    """What model a folder holds, when both of its files are as they were written; otherwise one line."""
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(f"no {CONFIG_FILE} in {folder}; name a folder that holds a saved model")
    stated = read_sealed(folder / CONFIG_FILE, FORMAT, upgrade=dict)
    try:
        digest = file_hash(folder / WEIGHTS_FILE)
    except OSError as error:
        raise UserError(f"cannot read the weights in {folder / WEIGHTS_FILE}: {error.strerror}") from None
    if digest != stated.get("weights", digest):  # a folder of format 1 does not say
        raise UserError(f"{folder / WEIGHTS_FILE} is damaged: it does not have the hash in {CONFIG_FILE}; restore it")
    return ModelConfig.from_dict(stated.get("model", {}))


def build(config: ModelConfig, weights: Path) -> LoopedLM:
    """A model with the weights of a file. Only when the file is known to fit is anything as large as it allocated."""
    with without_storage():
        blank = LoopedLM(config)
    try:
        with safe_open(weights, framework="pt") as file:
            _check(weights, file, blank.state_dict())
            tensors = {name: file.get_tensor(name) for name in blank.state_dict()}
    except (OSError, SafetensorError, RuntimeError) as error:  # the last is torch's, for a file that vanishes
        raise UserError(f"cannot read the weights in {weights}: {error}") from None
    model = LoopedLM(config)
    model.load_state_dict(tensors)
    return model


def _check(path: Path, file: safe_open, expected: Mapping[str, Tensor]) -> None:
    """The names, shapes and types in a safetensors file must be exactly those expected."""
    names = set(file.keys())
    for name in expected.keys() ^ names:
        fault = "lacks" if name in expected else "has an unknown"
        raise UserError(f"{path} {fault} tensor '{name}'; it does not belong to this configuration")
    for name, tensor in expected.items():
        found = file.get_slice(name)
        if list(tensor.shape) != (shape := list(found.get_shape())):
            raise UserError(f"{path}: tensor '{name}' has shape {shape}, the configuration needs {list(tensor.shape)}")
        if tensor.dtype != DTYPES.get(found.get_dtype()):
            raise UserError(f"{path}: tensor '{name}' has another type than {tensor.dtype}, which it needs")
