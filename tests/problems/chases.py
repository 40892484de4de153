"""A run on a small pointer chase, in a second."""

from __future__ import annotations

from pathlib import Path

from scse.config import RunOptions, assemble, protocol
from scse.training.trainer import train

SMALL = {"nodes": 6, "hops": 2, "width": 16, "ff_width": 32, "batch": 8, "steps": 6, "warmup": 2}


def settings(**changes):
    return {**protocol("pointer-chase"), **SMALL, "precision": "float32", **changes}


def train_small(out: Path, family: str = "scse", **changes):
    options = RunOptions(quiet=True, eval_every=3, checkpoint_every=3, eval_windows=8)
    return train(assemble(family, settings(**changes)), out, options)
