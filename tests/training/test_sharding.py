"""Models and checkpoints of which every process owns a part: drawn, saved, restored and trained without a whole."""

from __future__ import annotations

import errno
import math
import os
import shutil
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_distributed import assert_close_run
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from forked import two_processes
from runs import command, final_tensors, run
from scse.errors import RunFailure
from scse.model import LoopedLM, model_config
from scse.nn.without_storage import matrices_without_storage
from scse.persistence import load_model
from scse.processes import World
from scse.runs.checkpoint import CheckpointStore
from scse.runs.opened import open_run
from scse.runs.restoring import collect, export_model, model_of, restore
from scse.runs.shards import whole
from scse.training.objectives import Objective
from scse.training.sharding import copy_in_chunks, draw, give_storage, layers_of_their_own, shard
from tinymodels import NAMES, SHAPES, some_ids

CPU = torch.device("cpu")
LAYERS = {"prelude": 1, "coda": 1}


@pytest.fixture
def group():
    """One process that believes to be one of several."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


def sharded(config, replicated=False):
    with matrices_without_storage():
        model = LoopedLM(config, seed=5)
    assert all(p.is_meta for m in model.modules() if isinstance(m, torch.nn.Embedding) for p in m.parameters())
    objective = Objective(model)
    shard(objective, World(0, 1, CPU), "float32", replicated)
    give_storage(model, CPU)
    return objective


def trained(objective, steps=1):
    """Some steps of AdamW, so that there are moments."""
    optimiser = torch.optim.AdamW(objective.parameters(), lr=1e-2)
    rows = some_ids(2, 12)
    for _ in range(steps):
        objective(rows[:, :-1], rows[:, 1:], 2).backward()
        optimiser.step()
        optimiser.zero_grad()
    return optimiser


def values(model, optimiser):
    return {name: whole(tensor).clone() for name, tensor in collect(model, optimiser).all.items()}


@pytest.mark.parametrize("family", NAMES)
def test_shards_are_drawn_as_the_whole_is(group, family):
    config = model_config(family, SHAPES["everything"])
    objective = sharded(config)
    draw(objective.model, seed=5)
    wanted = LoopedLM(config, seed=5).state_dict()
    assert objective.model.state_dict().keys() == wanted.keys()
    for name, parameter in objective.model.named_parameters():
        assert torch.equal(whole(parameter), wanted[name]), name
        assert hasattr(parameter, "full_tensor"), f"{name} is not sharded"


def test_layers_that_are_applied_once_are_groups_of_their_own():
    layers = {"scse": 3, "unshared-3": 9}  # prelude and coda, and the core's where they are not shared
    for family, count in layers.items():
        assert len(layers_of_their_own(LoopedLM(model_config(family, SHAPES["layers"])))) == count


@pytest.mark.parametrize("background", [False, True])
def test_a_checkpoint_in_shards_is_read_again(group, tmp_path, background):
    """Also where training goes on while it is written; sharded, whole, and as an exported model."""
    config = model_config("scalar-gate", SHAPES["layers"])
    objective = sharded(config)
    draw(objective.model, seed=5)
    optimiser = trained(objective)
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    wanted = values(objective.model, optimiser)
    saving = store.save_shards(7, collect(objective.model, optimiser), None, background=group if background else None)
    with torch.no_grad():
        for parameter in objective.model.parameters():
            parameter.add_(1)
    saving.wait()
    found = store.newest()
    assert (found.step, found.in_shards) == (7, True)
    assert os.listdir(store.folder) == ["step-7"]
    assert sorted(os.listdir(found.folder)) == ["shard-1-of-1.safetensors", "state.json"]

    again = sharded(config)
    fresh = torch.optim.AdamW(again.parameters())
    restore(found, again.model, fresh, 7)
    alone = LoopedLM(config)
    plain = torch.optim.AdamW(alone.parameters())
    restore(found, alone, plain, 7)
    export_model(found, config, tmp_path / "model")
    for read in (values(again.model, fresh), values(alone, plain)):
        assert read.keys() == wanted.keys()
        assert all(torch.equal(read[name], wanted[name]) for name in wanted)
    for model in (model_of(found, config), load_model(tmp_path / "model")):
        assert all(torch.equal(tensor, wanted[name]) for name, tensor in model.state_dict().items())


def test_whole_tensors_are_read_into_shards(group, tmp_path):
    config = model_config("scse", SHAPES["layers"])
    model = LoopedLM(config, seed=3)
    optimiser = trained(Objective(model))
    store = CheckpointStore(tmp_path, keep=2)
    store.save(2, collect(model, optimiser), None)
    objective = sharded(config)
    fresh = torch.optim.AdamW(objective.parameters())
    restore(store.newest(), objective.model, fresh, 2)
    wanted, found = values(model, optimiser), values(objective.model, fresh)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_damaged_shards_are_noticed(group, tmp_path, caplog):
    objective = sharded(model_config("scse", SHAPES["block"]))
    draw(objective.model, seed=5)
    optimiser = trained(objective)
    store = CheckpointStore(tmp_path, keep=3)
    for step in (3, 6):
        store.save_shards(step, collect(objective.model, optimiser), None).wait()
    file = tmp_path / "step-6" / "shard-1-of-1.safetensors"
    content = file.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    for damaged in (bytes(flipped), content[:-1]):
        file.write_bytes(damaged)
        assert store.newest().step == 3
        assert f"{file} does not have the hash" in caplog.text
    file.write_bytes(content)
    assert store.newest().step == 6
    shutil.copy(file, file.with_name("shard-2-of-2.safetensors"))
    assert store.newest().step == 3, "a file that nobody vouches for"
    assert store.newest(set_aside=True).step == 3
    assert store.steps() == [3]


def test_shards_that_cannot_be_written_leave_those_before_as_they_were(group, tmp_path, monkeypatch):
    objective = sharded(model_config("scse", SHAPES["block"]))
    draw(objective.model, seed=5)
    optimiser = trained(objective)
    store = CheckpointStore(tmp_path, keep=3)
    store.save_shards(3, collect(objective.model, optimiser), None).wait()

    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("scse.runs.sharded.sync", full)
    with pytest.raises(RunFailure, match=r"cannot write checkpoint step-6.*No space left.*step-3.*intact"):
        store.save_shards(6, collect(objective.model, optimiser), None).wait()
    assert os.listdir(tmp_path) == ["step-3"]
    assert store.newest().step == 3


def together(corpus, out, *extra, **settings):
    result = two_processes(command(corpus, out, "--quiet", *extra, **settings))
    assert result.returncode == 0, result.stderr[-3000:]


def test_two_processes_resume_to_the_bit_in_mixed_precision(corpus, tmp_path):
    """With layers in groups of their own; in between, one process evaluates what two have saved."""
    settings = {"precision": "bfloat16", "prelude": 1, "coda": 1}
    together(corpus, tmp_path / "whole", "--strategy", "fsdp", **settings)
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed" / "checkpoints" / "step-9")
    (tmp_path / "resumed" / "model" / "config.json").unlink()
    assert open_run(tmp_path / "resumed").step == 6
    together(corpus, tmp_path / "resumed", "--strategy", "fsdp", **settings)
    for ours, theirs in zip(final_tensors(tmp_path / "resumed"), final_tensors(tmp_path / "whole"), strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    exported, (weights, _) = (
        load_file(tmp_path / "whole" / "model" / "model.safetensors"),
        final_tensors(tmp_path / "whole"),
    )
    assert exported.keys() == weights.keys()
    assert all(torch.equal(exported[name], weights[name]) for name in weights)


def test_machines_that_each_hold_all_of_the_model(corpus, tmp_path, monkeypatch):
    """Two machines of one process train what one does."""
    run(corpus, tmp_path / "one", micro_batches=2, **LAYERS)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    together(corpus, tmp_path / "two", "--strategy", "hsdp", micro_batches=2, **LAYERS)
    assert_close_run(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_gradients_are_laid_out_as_torch_does_and_nothing_is_allocated(processes: int) -> None:
    tensors = [torch.randn(rows, *rest) for rows, *rest in ((5, 3), (1,), (4, 2, 2), (7,), (6, 1))]
    size = sum(-(-len(tensor) // processes) * tensor[0].numel() for tensor in tensors)
    ours, theirs = torch.full((processes, size), math.nan), torch.full((processes, size), math.nan)
    torch._chunk_cat(tensors, 0, processes, out=theirs)
    with _Storages() as seen:
        copy_in_chunks(tensors, 0, processes, ours)
    assert torch.equal(ours, theirs)
    assert seen.storages <= {tensor.untyped_storage().data_ptr() for tensor in (*tensors, ours)}


class _Storages(TorchDispatchMode):
    """Where the results of all operations lie."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: set[int] = set()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = operation(*args, **(kwargs or {}))
        for result in tree_leaves(found):
            self.storages.add(result.untyped_storage().data_ptr())
        return found
