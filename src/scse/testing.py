"""The laws that every family obeys, for families of ours and yours: `check_family("mine")`, or `scse check mine`.

A law is a function of a small model in float64 with weights large enough that every term of its equation shows. It
raises `BrokenLaw` with one sentence, or says nothing. The test suite runs the same functions over the whole catalogue.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from scse.config.model import Shape
from scse.devices import CPU, send
from scse.errors import UserError
from scse.families import FAMILIES
from scse.generation import Depth, KVCache, settle
from scse.model import LoopedLM, model_config
from scse.persistence import load_model, save_model
from scse.recurrence import deviation_map
from scse.recurrence.build import stated

SMALL = Shape(width=24, heads=3, ff_width=48, context=16, vocabulary=61)
LENGTH, BATCH, DEPTH = 11, 3, 5
SPREAD = 0.2


class BrokenLaw(AssertionError):
    """A family does not obey a law; the message says how."""


@dataclass(frozen=True)
class Law:
    """`statement` is what must hold."""

    name: str
    statement: str
    check: Callable[[LoopedLM], None]


@dataclass(frozen=True)
class Verdict:
    """A law and, if it is broken, how."""

    law: Law
    fault: str = ""


def check_family(name: str, shape: Shape = SMALL, device: torch.device = CPU) -> list[Verdict]:
    """Every law on a family of the catalogue, or one that a guest has registered."""
    return list(verdicts(name, shape, device))


def verdicts(name: str, shape: Shape = SMALL, device: torch.device = CPU) -> Iterator[Verdict]:
    """The same one by one, as they are found."""
    for law in LAWS:
        try:
            law.check(small_model(name, shape).to(device))
            yield Verdict(law)
        except (BrokenLaw, UserError) as fault:
            yield Verdict(law, str(fault))


def small_model(name: str, shape: Shape = SMALL) -> LoopedLM:
    """A model in evaluation mode whose weights are larger than those a run starts with."""
    model = LoopedLM(model_config(name, shape)).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(SPREAD * torch.randn(parameter.shape, generator=generator).double())
    return model


def small_ids(model: LoopedLM) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return send(torch.randint(0, model.config.shape.vocabulary, (BATCH, LENGTH), generator=generator), model.device)


# ------------------------------------------------- the laws


def _catalogue(model: LoopedLM) -> None:
    row, found = FAMILIES.find(model.config.family), stated(model.recurrence)
    for name, value in found.items():
        if getattr(row, name) != value:
            raise BrokenLaw(f"its row says {name}={getattr(row, name)!r}, its recurrence {value!r}")
    for loops in (1, 3, 48):
        if row.body_applications(loops) != model.recurrence.body_applications(loops):
            raise BrokenLaw(f"its row and its recurrence count other applications of the core at {loops} loops")


@torch.no_grad()
def _causality(model: LoopedLM) -> None:
    ids = small_ids(model)
    before = model(ids, DEPTH)
    for position in (1, LENGTH // 2, LENGTH - 1):
        changed = ids.clone()
        changed[:, position] = (changed[:, position] + 7) % model.config.shape.vocabulary
        if not torch.equal(before[:, :position], model(changed, DEPTH)[:, :position]):
            raise BrokenLaw(f"a change at position {position} is seen by positions before it")


@torch.no_grad()
def _rows(model: LoopedLM) -> None:
    ids = small_ids(model)
    together = model(ids, DEPTH)
    for row in range(BATCH):
        _close(together[row], model(ids[row : row + 1], DEPTH)[0], 1e-10, f"row {row} differs from the same row alone")


@torch.no_grad()
def _one_unroll(model: LoopedLM) -> None:
    ids = small_ids(model)
    for state in islice(model.unroll(ids), 1, DEPTH + 1):
        if not torch.equal(state.hidden, model.hidden(ids, state.t)):
            raise BrokenLaw(f"the state after {state.t} loops depends on how many were asked for")


@torch.no_grad()
def _anchor(model: LoopedLM) -> None:
    frame = model.recurrence.begin(model.embed(small_ids(model)))
    if frame.anchor is None:
        return
    zero = torch.zeros_like(frame.embedding)
    for masked, claimed in ((False, model.recurrence.zero_preserving), (True, model.recurrence.anchor_preserving)):
        for t in range(DEPTH):
            forcing = deviation_map(model.recurrence, t, zero, frame, masked)
            if claimed and not bool((forcing == 0).all()):
                how = "with its mask" if masked else "before its mask"
                raise BrokenLaw(f"the anchor is claimed to be fixed {how}, and step {t} moves it")


@torch.no_grad()
def _cache(model: LoopedLM) -> None:
    ids = small_ids(model)
    for split in ((LENGTH,), (1,) * LENGTH, (4, 1, LENGTH - 5)):
        cache = KVCache(model, BATCH, DEPTH, capacity=2)
        parts = [settle(model, part, cache.append(part.shape[1]), Depth(DEPTH)) for part in ids.split(split, dim=1)]
        cached = model.head(torch.cat([part.outputs for part in parts], 1))
        _close(cached, model(ids, DEPTH), 1e-10, f"cached logits differ when the text comes in parts of {split}")


@torch.no_grad()
def _saving(model: LoopedLM) -> None:
    ids = small_ids(model)
    with tempfile.TemporaryDirectory() as folder:
        small = model.float()
        save_model(small, Path(folder) / "model")
        if not torch.equal(load_model(Path(folder) / "model", model.device)(ids, DEPTH), small(ids, DEPTH)):
            raise BrokenLaw("a saved and loaded model computes other bits")


@torch.no_grad()
def _precision(model: LoopedLM) -> None:
    small, ids = model.float(), small_ids(model)
    with torch.autocast(ids.device.type, torch.bfloat16):
        state = next(islice(small.unroll(ids), DEPTH, None))
        found = {"the state": state.z, "what the head takes": small.outputs(state.hidden)}
    for name, tensor in found.items():
        if tensor.dtype != torch.float32:
            raise BrokenLaw(f"{name} is rounded to {tensor.dtype} after {DEPTH} loops")


def _gradients(model: LoopedLM) -> None:
    ids = small_ids(model)
    model.nll(ids[:, :-1], ids[:, 1:], DEPTH).backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
            raise BrokenLaw(f"the gradient of {name} is not finite")
    plain = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    model.nll(ids[:, :-1], ids[:, 1:], DEPTH, recompute=True).backward()
    for (name, parameter), before in zip(model.named_parameters(), plain, strict=True):
        if (parameter.grad is None) != (before is None):
            raise BrokenLaw(f"{name} has a gradient only without recomputation, or only with it")
        if before is not None and parameter.grad is not None:
            _close(parameter.grad, before, 1e-8, f"the gradient of {name} is another when loops are recomputed")


def _close(found: Tensor, wanted: Tensor, tolerance: float, fault: str) -> None:
    scale = max(1.0, float(wanted.abs().max()))
    worst = float((found - wanted).abs().max()) / scale
    if not worst <= tolerance:
        raise BrokenLaw(f"{fault} (by {worst:.1e})")


LAWS = (
    Law("catalogue", "its row says what its recurrence does", _catalogue),
    Law("causality", "no position sees a later one, bit for bit", _causality),
    Law("rows", "a sequence comes out the same in any batch", _rows),
    Law("unroll", "the state at a depth does not depend on the depth asked for", _one_unroll),
    Law("anchor", "the anchor is fixed where that is claimed, bit for bit", _anchor),
    Law("cache", "cached and uncached logits agree, however the text comes", _cache),
    Law("saving", "a saved model computes the same bits", _saving),
    Law("precision", "where products are in bfloat16, what they are added to is not rounded", _precision),
    Law("gradients", "gradients are finite, and the same with recomputation", _gradients),
)
