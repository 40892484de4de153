"""What a process of a sharded run holds: memory beyond the start of the program, by stage, beside what it owns.

    .venv/bin/python tests/cluster/memory.py 22m

Every stage has two processes of its own, so that no peak hides another. Anonymous memory is counted, not the pages of
files that are mapped; freed memory is given back to the system at once.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

from scse.config.model import ModelConfig
from scse.model import LoopedLM, model_config
from scse.nn.without_storage import matrices_without_storage
from scse.runs.checkpoint import CheckpointStore
from scse.runs.restoring import collect, export_model, restore
from scse.training.distributed import World
from scse.training.objectives import Objective
from scse.training.sharding import draw, give_storage, shard

STAGES = ("train", "draw", "save", "restore", "export")
MIB = 2**20


def anonymous() -> int:
    """Bytes of this process that are no file's."""
    (kilobytes,) = re.findall(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kilobytes) * 1024


class Peak:
    """The most anonymous memory since it was entered, looked at every few milliseconds."""

    def __enter__(self) -> Peak:
        self.begin = self.most = anonymous()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self) -> None:
        while not self.ended.wait(0.002):
            self.most = max(self.most, anonymous())

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()


def built(config: ModelConfig, here: World) -> tuple[Objective, torch.optim.AdamW]:
    with matrices_without_storage():
        objective = Objective(LoopedLM(config, seed=1))
    shard(objective, here, "float32", replicated=False)
    give_storage(objective.model, here.device)
    return objective, torch.optim.AdamW(objective.parameters(), lr=1e-4, fused=True)


def step(objective: Objective, optimiser: torch.optim.AdamW) -> None:
    ids = torch.randint(0, 50_257, (1, 33), generator=torch.Generator().manual_seed(dist.get_rank()))
    objective(ids[:, :-1], ids[:, 1:], 2).backward()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)


def measure(stage: str, config: ModelConfig, store: CheckpointStore, here: World) -> dict[str, float]:
    if stage == "export":
        with Peak() as peak:
            if here.leads:
                export_model(store.newest(), config, store.folder.parent / "model")
    elif stage == "save":
        objective, optimiser = built(config, here)
        restore(store.newest(), objective.model, optimiser, 1)
        with Peak() as peak:
            store.save_shards(2, collect(objective.model, optimiser), None).wait()
    else:
        with Peak() as peak:
            objective, optimiser = built(config, here)
            if stage == "restore":
                restore(store.newest(), objective.model, optimiser, 1)
            else:
                draw(objective.model, 1)
            if stage == "train":
                for _ in range(2):
                    step(objective, optimiser)
        if stage == "train":
            store.save_shards(1, collect(objective.model, optimiser), None).wait()
    return {"MiB": round((peak.most - peak.begin) / MIB, 1)}


def main() -> None:
    scale, stage, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    here = World(dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    # torch's first product and FSDP's first hooks load code: a small model goes through every stage before.
    small = model_config("scse", "mini")
    warm = CheckpointStore(folder / "warm" / "checkpoints", keep=1)
    for each in STAGES:
        measure(each, small, warm, here)
        dist.barrier()
    ctypes.CDLL(None).malloc_trim(0)
    found = measure(stage, model_config("scse", scale), CheckpointStore(folder / "checkpoints", keep=1), here)
    with torch.device("meta"):
        count = sum(p.numel() for p in LoopedLM(model_config("scse", scale)).parameters())
    print(json.dumps({"stage": stage, "rank": here.rank, **found, "parameters": count}), flush=True)
    time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        main()
    else:
        import subprocess

        with tempfile.TemporaryDirectory() as scratch:
            for stage in STAGES:
                launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
                environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
                line = [*launcher, __file__, sys.argv[1], stage, scratch]
                subprocess.run(line, check=True, env=environment, stderr=subprocess.DEVNULL)
