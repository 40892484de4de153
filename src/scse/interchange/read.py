"""A folder of another project (config.json and safetensors) as a model of ours, and as a run folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from scse.config import TrainConfig
from scse.data import absolute_corpus
from scse.errors import UserError, checked_choice
from scse.families import HUGINN, OURO, PARCAE
from scse.files import replacing_folder, require_fresh
from scse.interchange.maps import Described, Plan, huginn, ouro
from scse.interchange.parcae import parcae
from scse.interchange.tokenizer import foreign_tokenizer
from scse.layout import CHECKPOINTS
from scse.model import LoopedLM
from scse.nn.without_storage import without_storage
from scse.persistence import save_model
from scse.runs.checkpoint import CheckpointStore, TrainingTensors
from scse.runs.folder import begin_or_continue

SOURCES: Mapping[str, Callable[[Described], Plan]] = {HUGINN: huginn, OURO: ouro, PARCAE: parcae}
INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"
PICKLES = ("pytorch_model.bin", "model.pt")


def read_foreign(folder: Path, source: str) -> tuple[LoopedLM, Plan]:
    """The model in a folder of the project `source`, in float32. Every tensor must find its place."""
    plan = _plan(SOURCES[checked_choice("project to import from", source, SOURCES)], folder / "config.json")
    with without_storage():
        wanted = LoopedLM(plan.config).state_dict()
    assert set(wanted) == set(plan.tensors)
    with _opened(folder) as files:
        used = {name for names, _ in plan.tensors.values() for name in names}
        for name in sorted(used ^ set(files)):
            if name in used:
                raise UserError(f"the weights in {folder} lack '{name}'; is this a folder of '{source}'?")
            if name not in plan.ignored:
                raise UserError(f"the weights in {folder} have '{name}', for which our model has no place")
        tensors = {}
        for name, (names, make) in plan.tensors.items():
            tensors[name] = make(*(files[part].get_tensor(part).float() for part in names)).contiguous()
            if tensors[name].shape != wanted[name].shape:
                found, needed = list(tensors[name].shape), list(wanted[name].shape)
                raise UserError(f"{names[0]} in {folder} has a size that makes {found}; config.json needs {needed}")
    model = LoopedLM(plan.config)
    model.load_state_dict(tensors)
    return model.eval(), plan


def _plan(source: Callable[[Described], Plan], path: Path) -> Plan:
    """What a project's configuration asks for, which may hold anything at all."""
    try:
        return source(_json(path))
    except UserError:
        raise
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise UserError(f"{path} holds a value that makes no sense ({error}); copy it again") from None


def import_run(folder: Path, out: Path, source: str, weights_only: bool) -> Plan:
    """Write `out` as a run folder, or with `weights_only` as a model folder. Half an import never exists."""
    require_fresh(out)
    model, plan = read_foreign(folder, source)
    tokenizer = None if weights_only else foreign_tokenizer(folder)
    with replacing_folder(out) as draft:
        if tokenizer is None:
            save_model(model, draft)
            return plan
        save_model(model, draft / "model")
        tokenizer.save(draft / "model")
        config = TrainConfig(
            model=plan.config,
            corpus=absolute_corpus("stdlib"),
            tokenizer=tokenizer.name,
            steps=1,
            max_loops=plan.loops,
        )
        begin_or_continue(draft, config, {"tokenizer": tokenizer.digest}, config.micro_batches)
        # Without moments, so that other runs can begin with these weights.
        CheckpointStore(draft / CHECKPOINTS, keep=1).save(0, TrainingTensors(dict(model.named_parameters()), {}), None)
    return plan


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; name a folder with config.json") from None
    except ValueError:
        raise UserError(f"{path} is not JSON; fetch it again") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no configuration; fetch it again")
    return found


@contextmanager
def _opened(folder: Path) -> Iterator[dict[str, safe_open]]:
    """Which open file holds each tensor; weights may be in one file or in several with an index."""
    names = {WEIGHTS}
    if (folder / INDEX).is_file():
        names = {str(name) for name in _json(folder / INDEX).get("weight_map", {}).values()}
    elif not (folder / WEIGHTS).is_file() and (found := [name for name in PICKLES if (folder / name).is_file()]):
        raise UserError(f"{folder / found[0]} is a pickle, which is not opened; docs/rivals.md says how to convert it")
    if any(Path(name).name != name for name in names):
        raise UserError(f"{folder / INDEX} points outside of its folder; it is not followed")
    files: dict[str, safe_open] = {}
    try:
        for name in sorted(names):
            file = safe_open(folder / name, framework="pt")
            files |= dict.fromkeys(file.keys(), file)
        with torch.no_grad():
            yield files
    except (OSError, SafetensorError, RuntimeError) as error:
        raise UserError(f"cannot read the weights in {folder}: {error}") from None
