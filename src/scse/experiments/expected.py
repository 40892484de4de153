"""What a run's settings resolve to, as its records state it. No torch here.

The defaults below are those of the family table and of `TrainConfig`, which cannot be read without loading torch; a
test holds the copies to the originals. They are what makes a match exact: a run that differs in an option nobody
mentioned is another run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from scse.config import GPT2_VOCABULARY, SCALES

_HIDDEN = {"step_scale": 0.5, "source_gain": 0.15}
_TUNED = {"step_scale": 0.35, "source_gain": 0.15}
_PROJECTED = {"normalise_projections": True}
_MASKED = {"mask": True, "mask_threshold": 1e-8}
_SCSE = {"step_scale": 0.5, "anchor": "learned", **_MASKED, **_PROJECTED}
_CONDITIONED = {**_HIDDEN, **_MASKED, **_PROJECTED}

OPTIONS: Mapping[str, Mapping[str, object]] = {
    "looped": _HIDDEN,
    "looped-s035": _TUNED,
    "scalar-gate": {"gate_start": 0.5, "source_gain": 0.15},
    "channel-gate": {"source_gain": 0.15},
    "norm-reset": {**_HIDDEN, "reset_period": 4},
    "adapter": {**_HIDDEN, **_PROJECTED},
    "tuned-adapter": {**_TUNED, **_PROJECTED},
    "step-adapter": {**_TUNED, "step_signal": 0.015, **_PROJECTED},
    "film-adapter": {**_TUNED, "film_scale": 0.1, "film_steps": 8, **_PROJECTED},
    "scse": _SCSE,
    "scse-embedding": {**_SCSE, "anchor": "embedding"},
    "scse-initial": {**_SCSE, "anchor": "initial"},
    "scse-random": {**_SCSE, "anchor": "random"},
    "sc-cond": _CONDITIONED,
    "sc-cond-unmasked": {**_CONDITIONED, "mask": False},
    "sc-cond-subtractive": {**_CONDITIONED, "mask": False},
    "forcing-subtraction": {**_HIDDEN, **_PROJECTED},
    "leak": {**_CONDITIONED, "leak": 0.02},
    "unshared-4": {"layers": 4},
    "unshared-6": {"layers": 6},
    "unshared-8": {"layers": 8},
}

TRAINING: dict[str, object] = {
    "batch": 32,
    "micro_batches": 1,
    "lr": 3e-4,
    "warmup": 500,
    "weight_decay": 0.1,
    "beta1": 0.9,
    "beta2": 0.95,
    "clip": 1.0,
    "max_loops": 8,
    "precision": "auto",
}
# What came later: in an identity only where it is not neutral.
LATER: dict[str, object] = {"parent": None}
# What `auto` becomes depends on the machine; a run counts whichever it was.
AUTO = ("float32", "bfloat16")


def trained_as(who: Mapping[str, Any], family: str, settings: Mapping[str, object]) -> bool:
    """Whether the run behind an identity is finished and is the run that these settings of a family give."""
    if who["model"]["family"] != family or who["trained_steps"] != who["protocol"]["steps"]:
        return False
    model, training = resolved(family, settings, int(who["seed"]))
    precision = training.pop("precision")
    stated = {name: value for name, value in who["protocol"].items() if name != "precision"}
    same_precision = who["protocol"]["precision"] in (AUTO if precision == "auto" else (precision,))
    return bool(who["model"] == model and stated == training and same_precision)


def resolved(family: str, settings: Mapping[str, object], seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The `model` and the `protocol` of an identity, every default filled in.

    Of a family that is not in the table above (one registered from outside) only the options given are known.
    """
    given = dict(settings)
    shape = asdict(SCALES[str(given.pop("scale", "mini"))])
    own = "gpt2" if shape["vocabulary"] == GPT2_VOCABULARY else f"bpe-{shape['vocabulary']}"
    tokenizer = str(given.pop("tokenizer", own))
    shape["vocabulary"] = GPT2_VOCABULARY if tokenizer == "gpt2" else int(tokenizer.removeprefix("bpe-"))
    training: dict[str, object] = {"corpus": given.pop("data", "stdlib"), "tokenizer": tokenizer, **TRAINING, **LATER}
    training["steps"] = given.pop("steps", None)
    data_seed = given.pop("data_seed", seed)
    training["data_seed"] = "seed" if data_seed == seed else data_seed
    options = dict(OPTIONS.get(family, {}))
    for name, value in given.items():
        place = next((part for part in (training, shape) if name in part), options)
        place[name] = value
    training = {name: value for name, value in training.items() if name not in LATER or value != LATER[name]}
    return {"family": family, "options": options, "shape": shape}, training
