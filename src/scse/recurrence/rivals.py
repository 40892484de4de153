"""How the families of other projects are put together from our slots. docs/rivals.md says what differs from theirs.

What each option is by default, and each family's equation, stands in `scse.families`.

Notation: R(x) = x + B(x) the core with its residuals, n parameter-free and n_w learned RMS normalisation, ε truncated
normal noise. All of them run with one layer and without prelude and coda, as the paper's families do; the options of
the shape give them more.
"""

from __future__ import annotations

from scse.config.model import Shape
from scse.errors import UserError
from scse.recurrence.anchors import (
    EmbeddingAnchor,
    EmbeddingStart,
    NoAnchor,
    NormalisedStart,
    ProjectedStart,
    make_anchor,
)
from scse.recurrence.conditioning import TimedCore
from scse.recurrence.coordinates import Deviation, Hidden
from scse.recurrence.drives import BareState
from scse.recurrence.halting import AdaptiveHalting, TimedState, Weighted
from scse.recurrence.injections import Concatenation, DecayedInjection, DecayedState, OrthogonalInjection
from scse.recurrence.modifiers import CarryInput, FixedScale, NoReset, StateNorm, StepNorm
from scse.recurrence.reading import ExitGate, ReadMatrix, ReadNorm, ReadState
from scse.recurrence.recurrence import Centred, Recurrence
from scse.recurrence.slots import Drive, Read, Reset, Start
from scse.recurrence.starts import BLIND, make_start
from scse.recurrence.updates import SharedCore


def _through_core(
    shape: Shape, drive: Drive, reset: Reset, read: Read, start: Start, step_scale: float = 1.0
) -> Recurrence:
    """h' = reset(x + s·B(x)) with x = drive(h), measured from e; s = 1 gives R(x)"""
    return Recurrence(
        SharedCore(shape),
        Hidden(),
        start=start,
        anchor=EmbeddingAnchor(),
        drive=drive,
        gain=FixedScale(step_scale),
        keep=CarryInput(),
        reset=reset,
        read=read,
    )


def _centred(shape: Shape, drive: Drive, reset: Reset, read: Read, anchor: str, normalise: bool) -> Recurrence:
    """Δ' = F(h* + Δ) − F(h*) for F(h) = reset(R(drive(h))); start and anchor are those of SCSE.

    A start at e or at random would leave the choice of the anchor to chance: at h_0 = h* nothing ever moves.
    """
    return Centred(
        SharedCore(shape),
        Deviation(),
        start=ProjectedStart(shape, normalise),
        anchor=make_anchor(anchor, shape, normalise),
        drive=drive,
        gain=FixedScale(1.0),
        keep=CarryInput(),
        reset=reset,
        read=read,
    )


def _norm_after(shape: Shape, wanted: bool) -> Reset:
    return StepNorm(shape) if wanted else NoReset()


def _read_for_coda(shape: Shape) -> Read:
    return ReadNorm(shape) if shape.coda else ReadState()


def huginn(
    shape: Shape,
    *,
    start: str,
    noise: float,
    noise_seed: int,
    normalise_input: bool,
    step_norm: bool,
) -> Recurrence:
    drive = Concatenation(shape, normalise_input)
    begin = make_start(start, shape, noise, noise_seed)
    return _through_core(shape, drive, _norm_after(shape, step_norm), _read_for_coda(shape), begin)


def parcae(
    shape: Shape,
    *,
    start: str,
    noise: float,
    noise_seed: int,
    normalise_input: bool,
    recall: bool,
    decay: bool,
    step_scale: float,
    state_norm: bool,
) -> Recurrence:
    """Without recall the input is in the start alone, and it is there that it is normalised."""
    begin = make_start(start, shape, noise, noise_seed)
    drive: Drive
    if recall:
        drive = DecayedInjection(shape, normalise_input, decay)
    else:
        if start in BLIND:
            raise UserError(f"recall=false with start={start} never shows the model its input; set start=embedding")
        begin = NormalisedStart(shape, begin) if normalise_input else begin
        drive = DecayedState(shape) if decay else BareState()
    reset: Reset = StateNorm(shape) if state_norm else NoReset()
    return _through_core(shape, drive, reset, ReadMatrix(shape), begin, step_scale)


def orthogonal_injection(
    shape: Shape, *, start: str, noise: float, noise_seed: int, normalise_input: bool
) -> Recurrence:
    drive = OrthogonalInjection(shape, normalise_input)
    return _through_core(shape, drive, NoReset(), ReadMatrix(shape), make_start(start, shape, noise, noise_seed))


def ouro(shape: Shape, *, exit_gate: bool) -> Recurrence:
    return Recurrence(
        SharedCore(shape),
        Hidden(),
        start=EmbeddingStart(),
        anchor=EmbeddingAnchor(),
        gain=FixedScale(1.0),
        reset=StepNorm(shape),
        exit=ExitGate(shape) if exit_gate else None,
    )


def loopformer(shape: Shape, *, time_steps: int) -> Recurrence:
    return Recurrence(
        TimedCore(shape, time_steps),
        Hidden(),
        start=EmbeddingStart(),
        anchor=EmbeddingAnchor(),
        gain=FixedScale(1.0),
    )


def universal(shape: Shape, *, step_signal: float, halting_bias: float, halting_epsilon: float) -> Recurrence:
    return Recurrence(
        SharedCore(shape),
        Weighted(),
        start=EmbeddingStart(),
        anchor=NoAnchor(),
        drive=TimedState(step_signal),
        gain=FixedScale(1.0),
        keep=CarryInput(),
        halting=AdaptiveHalting(shape, halting_bias, halting_epsilon),
    )


def centred_huginn(
    shape: Shape,
    *,
    anchor: str,
    normalise_input: bool,
    step_norm: bool,
    normalise_projections: bool,
) -> Recurrence:
    drive = Concatenation(shape, normalise_input)
    reset = _norm_after(shape, step_norm)
    return _centred(shape, drive, reset, _read_for_coda(shape), anchor, normalise_projections)


def centred_parcae(shape: Shape, *, anchor: str, normalise_input: bool, normalise_projections: bool) -> Recurrence:
    drive = DecayedInjection(shape, normalise_input)
    return _centred(shape, drive, NoReset(), ReadMatrix(shape), anchor, normalise_projections)


def centred_orthogonal_injection(
    shape: Shape, *, anchor: str, normalise_input: bool, normalise_projections: bool
) -> Recurrence:
    drive = OrthogonalInjection(shape, normalise_input)
    return _centred(shape, drive, NoReset(), ReadMatrix(shape), anchor, normalise_projections)


COMPOSERS = (
    huginn,
    parcae,
    orthogonal_injection,
    ouro,
    loopformer,
    universal,
    centred_huginn,
    centred_parcae,
    centred_orthogonal_injection,
)
