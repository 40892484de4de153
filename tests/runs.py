"""A run small enough to be trained dozens of times in the tests."""

from __future__ import annotations

import json
import random
import sys
from operator import itemgetter
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from forked import scse as scse
from scse.config import RunOptions, assemble
from scse.training.trainer import train

SCSE = Path(sys.executable).with_name("scse")
SETTINGS = {
    "tokenizer": "bpe-300",
    "width": 24,
    "heads": 2,
    "ff_width": 48,
    "context": 16,
    "batch": 4,
    "steps": 9,
    "warmup": 2,
    "lr": 3e-3,
    "max_loops": 3,
    "precision": "float32",
}


def write_corpus(folder: Path, words: int = 3000) -> Path:
    """Text with structure to learn, the same every time."""
    draw = random.Random(0)
    vocabulary = ["the", "state", "moves", "from", "its", "anchor", "loop", "after", "again", "and", "rests", "."]
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", words), ("validation", words // 6), ("test", words // 6)):
        text = " ".join(draw.choice(vocabulary) for _ in range(count))
        (folder / f"{split}.txt").write_text(text)
    return folder


def changed(changes: dict) -> dict:
    """The settings with some changed; depths say themselves how many loops they mean."""
    chosen = {**SETTINGS, **changes}
    if "depths" in changes:
        del chosen["max_loops"]
    return chosen


def config_for(corpus: Path, family: str = "scse", **changes):
    return assemble(family, {**changed(changes), "data": str(corpus)})


def options(cache: Path, **changes):
    defaults = {"eval_every": 3, "checkpoint_every": 3, "eval_windows": 4, "keep": 2, "quiet": True}
    return RunOptions(cache_dir=str(cache), **{**defaults, **changes})


def run(corpus: Path, out: Path, family: str = "scse", run_options: dict | None = None, **changes):
    return train(config_for(corpus, family, **changes), out, options(corpus.parent / "cache", **(run_options or {})))


def final_tensors(out: Path):
    """Weights and moments of the newest checkpoint."""
    newest = max((out / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    if (newest / "model.safetensors").exists():
        return load_file(newest / "model.safetensors"), load_file(newest / "optimizer.safetensors")
    rows = {}
    for path in newest.glob("shard-*.safetensors"):
        with safe_open(path, framework="pt") as file:
            begins = json.loads(file.metadata()["DCP_SHARDING_INFO"])
            for name, tensor in load_file(path).items():
                rows.setdefault(name, []).append((begins[name]["saved_offsets"], tensor))
    tensors = {name: torch.cat([part for _, part in sorted(parts, key=itemgetter(0))]) for name, parts in rows.items()}
    moments = {name for name in tensors if name.startswith(("exp_avg.", "exp_avg_sq."))}
    return {n: tensors[n] for n in tensors.keys() - moments}, {n: tensors[n] for n in moments}


def command(corpus: Path, out: Path, *extra: str, **changes) -> list[str]:
    """The command line of the same run."""
    chosen = changed(changes)
    tokenizer, steps, precision = (chosen.pop(name) for name in ("tokenizer", "steps", "precision"))
    sets = [part for name, value in chosen.items() for part in ("--set", f"{name}={value}")]
    return [
        *("train", "--data", str(corpus), "--cache-dir", str(corpus.parent / "cache"), "--out", str(out)),
        *("--vocab", tokenizer.removeprefix("bpe-"), "--steps", str(steps), "--precision", precision),
        *("--eval-every", "3", "--checkpoint-every", "3", *sets, *extra),
    ]
