"""What a process of a sharded run holds at most, stage by stage, beside what it owns.

    OMP_NUM_THREADS=1 MALLOC_MMAP_THRESHOLD_=65536 .venv/bin/torchrun --standalone --nproc-per-node 2 \
        tests/cluster/memory.py 22m 96m 22m/50304 96m/50304

A number behind a scale is another vocabulary than GPT-2's.
Anonymous memory is counted, beyond that of the program before there is a model; not the pages of files that are mapped.
The threshold lets the C library give freed tensors back to the system at once. Two sequences of 64 tokens, two loops.
"""

from __future__ import annotations

import ctypes
import gc
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from scse.config.model import ModelConfig
from scse.model import LoopedLM, model_config
from scse.nn.without_storage import matrices_without_storage, without_storage
from scse.processes import World
from scse.runs.checkpoint import CheckpointStore
from scse.runs.restoring import collect, export_model, restore
from scse.training.objectives import Objective
from scse.training.sharding import draw, give_storage, shard

MIB = 2**20
Peaks = dict[str, float]


def anonymous() -> int:
    """Bytes of this process that are no file's."""
    (kilobytes,) = re.findall(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kilobytes) * 1024


@contextmanager
def peak(stage: str, found: Peaks, before: int) -> Iterator[None]:
    """The most memory within, looked at every few milliseconds."""
    ended, most = threading.Event(), [anonymous()]

    def watch() -> None:
        while not ended.wait(0.002):
            most[0] = max(most[0], anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    yield
    ended.set()
    thread.join()
    found[stage] = (most[0] - before) / MIB
    dist.barrier()


def built(config: ModelConfig, here: World) -> tuple[Objective, torch.optim.AdamW]:
    with matrices_without_storage():
        objective = Objective(LoopedLM(config, seed=1))
    shard(objective, here, "float32", replicated=False)
    give_storage(objective.model, here.device)
    return objective, torch.optim.AdamW(objective.parameters(), lr=1e-4, fused=True)


def step(objective: Objective, optimiser: torch.optim.AdamW) -> None:
    vocabulary = objective.model.config.shape.vocabulary
    ids = torch.randint(0, vocabulary, (1, 65), generator=torch.Generator().manual_seed(dist.get_rank()))
    objective(ids[:, :-1], ids[:, 1:], 2).backward()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)


def stages(config: ModelConfig, folder: Path, here: World) -> Peaks:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    found, before = Peaks(), anonymous()
    store = CheckpointStore(folder / "checkpoints", keep=1)
    with peak("draw", found, before):
        objective, optimiser = built(config, here)
        draw(objective.model, 1)
    with peak("train", found, before):
        for _ in range(2):
            step(objective, optimiser)
    ctypes.CDLL(None).malloc_trim(0)
    with peak("save", found, before):
        store.save_shards(2, collect(objective.model, optimiser), None).wait()
    del objective, optimiser
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with peak("restore", found, before):
        objective, optimiser = built(config, here)
        restore(store.newest(), objective.model, optimiser, 2)
    del objective, optimiser
    gc.collect()
    with peak("export", found, before):
        if here.leads:
            export_model(store.newest(), config, folder / "model")
    return found


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    here = World(dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    with tempfile.TemporaryDirectory() as scratch:
        (shared,) = [scratch] if here.size == 1 else [here.from_leader(scratch)]
        # The first products and hooks load code and reserve room: the first scale goes through every stage twice, and
        # its first line counts that too.
        for scale in (sys.argv[1], *sys.argv[1:]):
            name, _, vocabulary = scale.partition("/")
            config = model_config("scse", name)
            if vocabulary:
                config = replace(config, shape=replace(config.shape, vocabulary=int(vocabulary)))
            with without_storage():
                count = sum(parameter.numel() for parameter in LoopedLM(config).parameters())
            found = stages(config, Path(shared) / scale, here)
            stated = ", ".join(f"{stage} {most:.0f}" for stage, most in found.items())
            print(f"{scale} rank {here.rank}: {4 * count / MIB:.0f} MiB of weights; at most {stated} MiB", flush=True)
            dist.barrier()
    time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
