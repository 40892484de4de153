"""The one resolver: from a family and flat settings to a run, every default filled in. No torch here.

Commands, suites and sweeps all go through `assemble`; a record belongs to a run if it states what `assemble` gives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from scse.catalogue import typed_like
from scse.config.depths import PER_SEQUENCE, SAMPLERS, parse_depths
from scse.config.model import DEFAULT_SCALE, GPT2_VOCABULARY, ModelConfig, Shape, scale
from scse.config.objective import EXPECTED, TERMS_TABLE, canonical_objective, parse_objective
from scse.config.training import TrainConfig
from scse.data import CORPORA, DataConfig, absolute_corpus
from scse.data.tokenizer import WORDS, trained_size
from scse.errors import UserError, unknown_name
from scse.families import FAMILIES
from scse.problems import PROBLEMS, Problem, make_problem
from scse.registry import who_brought

# What a name in the settings can change of the training itself.
_SETTABLE = [
    f.name for f in fields(TrainConfig) if f.type in ("int", "float", "str") and f.name not in ("corpus", "tokenizer")
]
# How many loops more than the hardest answers need the depths of training reach, so that answers learn to rest.
MARGIN = 2
# What `auto` becomes depends on the machine; a run counts whichever it was.
_AUTO = ("float32", "bfloat16")


def assemble(family: str, settings: Mapping[str, object]) -> TrainConfig:
    """A run from flat settings: options of training, of the shape and of the family by their plain names.

    `scale`, `data` and `tokenizer` name a shape, a corpus and a tokenizer; all else overrides one field.
    """
    given = dict(settings)
    shape = scale(str(given.pop("scale", DEFAULT_SCALE)))
    row = FAMILIES.find(family)
    corpus = absolute_corpus(str(given.pop("data", DataConfig.corpus)))
    training: dict[str, Any] = {"corpus": corpus}
    problem_options: list[str] = []
    _resolve_depths(given)
    if corpus in PROBLEMS:
        problem, problem_options = _chosen_problem(corpus, given)
        shape = replace(shape, context=problem.length, vocabulary=problem.vocabulary + 1)  # and the end of text
        training |= {"tokenizer": WORDS, "problem": problem.options}
        given.setdefault("max_loops", problem.hardest + MARGIN)
    else:
        default_tokenizer = "gpt2" if shape.vocabulary == GPT2_VOCABULARY else f"bpe-{shape.vocabulary}"
        training["tokenizer"] = str(given.pop("tokenizer", default_tokenizer))
        shape = replace(shape, vocabulary=trained_size(training["tokenizer"]) or GPT2_VOCABULARY)
    shape_fields = {f.name: getattr(shape, f.name) for f in fields(Shape) if f.name != "vocabulary"}
    train_fields: dict[str, Any] = {f.name: f.default for f in fields(TrainConfig) if f.name in _SETTABLE}
    train_fields["steps"] = 0
    given.setdefault("data_seed", given.get("seed", 0))

    chosen: dict[str, dict[str, Any]] = {"train": {}, "shape": {}, "family": {}}
    for name, value in given.items():
        if name in train_fields:
            chosen["train"][name] = typed_like(name, train_fields[name], value)
        elif name in shape_fields:
            chosen["shape"][name] = typed_like(name, shape_fields[name], value)
        elif name in row.options:
            chosen["family"][name] = value
        else:
            known = [*problem_options, *train_fields, *shape_fields, *row.options]
            raise unknown_name("option", name, known, of=f"a run of '{row.name}'")
    if "steps" not in chosen["train"]:
        raise UserError("the number of steps is missing; give --steps N or a --protocol")
    model = ModelConfig(row.name, replace(shape, **chosen["shape"]), row.resolve(chosen["family"]))
    config = TrainConfig(model=model, **training, **chosen["train"])
    text = (PROBLEMS if corpus in PROBLEMS else CORPORA).origin(corpus)
    terms = (who_brought(TERMS_TABLE, term.name) for term in parse_objective(config.objective))
    origins = (FAMILIES.origin(row.name), SAMPLERS.origin(config.sampler.sampler.name), text, *terms)
    return replace(config, guests={guest.name: guest.version for guest in origins if guest is not None})


def _resolve_depths(given: dict[str, object]) -> None:
    """Depths and objective as they are stored: NAME:LOOPS:WARMUP is three settings, a learned exit needs a gate."""
    if "objective" in given:
        given["objective"] = canonical_objective(str(given["objective"]))
        if EXPECTED in (term.name for term in parse_objective(str(given["objective"]))):
            given.setdefault("gate", True)
    text = str(given.get("depths", ""))
    if ":" not in text and text.removesuffix(PER_SEQUENCE) in ("", *SAMPLERS.names()):
        return
    wanted = parse_depths(text)
    said = given.get("max_loops")
    if said is not None and str(said) != str(wanted.n):
        raise UserError(f"depths={text} and max_loops={said} disagree; leave max_loops out")
    given |= {"depths": wanted.text, "max_loops": wanted.n}
    if wanted.warmup or text.count(":") > 1:  # a 0 that is written ends the growth of a protocol
        given["depth_warmup"] = wanted.warmup


def _chosen_problem(name: str, given: dict[str, object]) -> tuple[Problem, list[str]]:
    """The problem that the settings describe, and the names of its options; what is used up is taken from them."""
    options = [f.name for f in fields(PROBLEMS.find(name))]
    problem = make_problem(name, {option: given.pop(option) for option in options if option in given})
    if str(given.pop("tokenizer", WORDS)) != WORDS:
        raise UserError(f"problem '{name}' has words of its own; leave --vocab out")
    if typed_like("context", problem.length, given.pop("context", problem.length)) != problem.length:
        raise UserError(f"a sequence of {name} has {problem.length} tokens, which is the context; leave it out")
    return problem, options


def trained_as(who: Mapping[str, Any], family: str, settings: Mapping[str, object]) -> bool:
    """Whether the run behind a record's identity is finished and is the run that these settings of a family give."""
    if who["model"]["family"] != family or who["trained_steps"] != who["protocol"]["steps"]:
        return False
    model, protocol = _stated(family, json.dumps({**settings, "seed": who["seed"]}, sort_keys=True))
    row = FAMILIES.find(family)
    own = {**who["model"], "options": {**row.options, **who["model"]["options"]}}  # options may have come later
    wanted = protocol["precision"]
    stated = {**who["protocol"], "precision": wanted}
    same_precision = who["protocol"]["precision"] in (_AUTO if wanted == "auto" else (wanted,))
    return bool(own == model and stated == protocol and same_precision)


@lru_cache(maxsize=4096)
def _stated(family: str, settings: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The `model` and the `protocol` in the identity of a run, by its settings as JSON."""
    config = assemble(family, {"precision": "auto", **json.loads(settings)})
    return config.model.to_dict(), config.protocol()
