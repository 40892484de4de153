"""The paper's training protocols as presets, one for each problem, and one that trains for depth. A preset only sets
options; the command line can change any of them.

Every protocol of the paper sees 4,096 tokens per optimiser step and samples the loop depth uniformly from 1 to 8.
"""

from __future__ import annotations

from scse.errors import checked_choice
from scse.problems import PROBLEMS

Preset = dict[str, object]


def _wikitext103(scale: str, **changes: object) -> Preset:
    return {"scale": scale, "data": "wikitext-103", "steps": 5000, **changes}


# Where the memory of the paper's accelerator called for it, a step is split in two micro-batches.
_HALVES = {"micro_batches": 2}
_C4_137M = {"scale": "137m", "data": "c4", "lr": 2.5e-4}

PROTOCOLS: dict[str, Preset] = {
    "wikitext-2": {"scale": "22m", "data": "wikitext-2", "steps": 1200},
    "wikitext-103": _wikitext103("22m"),
    "wikitext-103-50m": _wikitext103("50m", **_HALVES),
    "wikitext-103-96m": _wikitext103("96m", **_HALVES),
    "wikitext-103-96m-10k": _wikitext103("96m", steps=10_000, **_HALVES),
    "wikitext-103-ctx512": _wikitext103("22m", context=512, batch=8),
    "wikitext-103-ctx1024": _wikitext103("22m", context=1024, batch=4),
    "openwebtext": {"scale": "22m", "data": "openwebtext", "steps": 5000},
    "c4": {"scale": "22m", "data": "c4", "steps": 5000},
    "c4-137m": {**_C4_137M, "steps": 5000},
    "c4-137m-50k": {**_C4_137M, "steps": 50_000},
}

# Not the paper's: the same comparison for two cores and minutes.
_MINI: Preset = {"scale": "mini", "steps": 400, "batch": 16, "lr": 1e-3, "warmup": 50}
# For models that will be asked for more loops than usual: shallow depths stay frequent, deep ones are seen, and
# gradients go through a few loops only, so that the deep ones cost a forward pass. docs/training.md says what it does.
FOR_DEPTH: Preset = {"depths": "log-uniform:32", "backprop": 8}
# At 400 steps no loop has learnt to use its context (results/README.md): there would be no gain from depth to keep.
PROTOCOLS |= {"mini": _MINI, "deep": {**_MINI, "steps": 2000, **FOR_DEPTH}}

# A small model that learns a problem in minutes on two cores. Depths go two loops beyond the hardest answers, and grow
# to that: with all of them from the beginning a model learns to guess the end before it learns the step.
_PROBLEM: Preset = {
    "width": 64,
    "heads": 2,
    "ff_width": 256,
    "dropout": 0.0,
    "init_std": 0.1,
    "batch": 64,
    "lr": 3e-3,
    "warmup": 100,
    "depth_warmup": 1000,
}
PROTOCOLS |= {name: {"data": name, "steps": 2000, **_PROBLEM} for name in PROBLEMS.names()}


def protocol(name: str) -> Preset:
    """A preset by name. A problem that a guest brought has one too, that of all problems."""
    if name in PROBLEMS and name not in PROTOCOLS:
        return {"data": name, "steps": 2000, **_PROBLEM}
    return dict(PROTOCOLS[checked_choice("protocol", name, PROTOCOLS)])
