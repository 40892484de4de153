"""How the paper's families are put together: functions from a shape and the family's options to a recurrence.

What each option is by default, and each family's equation, stands in `scse.families`.
"""

from __future__ import annotations

from typing import Any

from scse.config.model import Shape
from scse.recurrence.anchors import EmbeddingAnchor, EmbeddingStart, NoAnchor, ProjectedStart, make_anchor
from scse.recurrence.base import Coordinates
from scse.recurrence.coordinates import Deviation, Hidden
from scse.recurrence.drives import (
    AnchoredInjection,
    Injection,
    StepFilm,
    StepSignal,
    anchor_source,
    embedding_source,
)
from scse.recurrence.modifiers import ChannelGate, FixedScale, Leak, PeriodicReset, ScalarGate, make_mask
from scse.recurrence.recurrence import Recurrence
from scse.recurrence.slots import Mask
from scse.recurrence.updates import SharedCore, Subtractive, UnsharedCore

# ------------------------------------------------- start e, anchor e: the additive baseline and its stabilisers


def _from_embedding(shape: Shape, source_gain: float, **units: Any) -> Recurrence:
    drive = Injection(shape, embedding_source, source_gain)
    return Recurrence(
        SharedCore(shape),
        Hidden(),
        start=EmbeddingStart(),
        anchor=EmbeddingAnchor(),
        drive=drive,
        **units,
    )


def looped(shape: Shape, *, step_scale: float, source_gain: float) -> Recurrence:
    return _from_embedding(shape, source_gain, gain=FixedScale(step_scale))


def scalar_gate(shape: Shape, *, gate_start: float, source_gain: float) -> Recurrence:
    return _from_embedding(shape, source_gain, gain=ScalarGate(gate_start))


def channel_gate(shape: Shape, *, source_gain: float) -> Recurrence:
    return _from_embedding(shape, source_gain, gain=ChannelGate(shape))


def norm_reset(shape: Shape, *, step_scale: float, source_gain: float, reset_period: int) -> Recurrence:
    reset = PeriodicReset(shape, reset_period)
    return _from_embedding(shape, source_gain, gain=FixedScale(step_scale), reset=reset)


# ------------------------------------------------- start H_0(e), learned anchor: everything else that is shared


def _from_projection(
    shape: Shape,
    coordinates: Coordinates,
    step_scale: float,
    normalise: bool,
    anchor: str = "learned",
    **units: Any,
) -> Recurrence:
    return Recurrence(
        SharedCore(shape),
        coordinates,
        start=ProjectedStart(shape, normalise),
        anchor=make_anchor(anchor, shape, normalise),
        gain=FixedScale(step_scale),
        **units,
    )


def _conditioned(
    shape: Shape, step_scale: float, source_gain: float, mask: Mask, normalise: bool, **units: Any
) -> Recurrence:
    drive = Injection(shape, anchor_source, source_gain)
    return _from_projection(shape, Deviation(), step_scale, normalise, drive=drive, mask=mask, **units)


def adapter(
    shape: Shape,
    *,
    step_scale: float,
    source_gain: float,
    normalise_projections: bool,
) -> Recurrence:
    drive = Injection(shape, anchor_source, source_gain)
    return _from_projection(shape, Hidden(), step_scale, normalise_projections, drive=drive)


def step_adapter(
    shape: Shape,
    *,
    step_scale: float,
    source_gain: float,
    step_signal: float,
    normalise_projections: bool,
) -> Recurrence:
    drive = StepSignal(shape, Injection(shape, anchor_source, source_gain), step_signal)
    return _from_projection(shape, Hidden(), step_scale, normalise_projections, drive=drive)


def film_adapter(
    shape: Shape,
    *,
    step_scale: float,
    source_gain: float,
    film_scale: float,
    film_steps: int,
    normalise_projections: bool,
) -> Recurrence:
    drive = StepFilm(shape, Injection(shape, anchor_source, source_gain), film_scale, film_steps)
    return _from_projection(shape, Hidden(), step_scale, normalise_projections, drive=drive)


def scse(
    shape: Shape,
    *,
    step_scale: float,
    anchor: str,
    mask: bool,
    mask_threshold: float,
    normalise_projections: bool,
) -> Recurrence:
    zero_mask = make_mask(mask, mask_threshold)
    return _from_projection(shape, Deviation(), step_scale, normalise_projections, anchor, mask=zero_mask)


def leak(
    shape: Shape,
    *,
    step_scale: float,
    source_gain: float,
    leak: float,
    mask: bool,
    mask_threshold: float,
    normalise_projections: bool,
) -> Recurrence:
    zero_mask = make_mask(mask, mask_threshold)
    return _conditioned(shape, step_scale, source_gain, zero_mask, normalise_projections, keep=Leak(leak))


def sc_cond(
    shape: Shape,
    *,
    step_scale: float,
    source_gain: float,
    mask: bool,
    mask_threshold: float,
    normalise_projections: bool,
) -> Recurrence:
    return _conditioned(shape, step_scale, source_gain, make_mask(mask, mask_threshold), normalise_projections)


def sc_cond_subtractive(
    shape: Shape,
    *,
    step_scale: float,
    source_gain: float,
    mask: bool,
    mask_threshold: float,
    normalise_projections: bool,
) -> Recurrence:
    zero_mask = make_mask(mask, mask_threshold)
    return _conditioned(shape, step_scale, source_gain, zero_mask, normalise_projections, update=Subtractive())


def forcing_subtraction(
    shape: Shape,
    *,
    step_scale: float,
    source_gain: float,
    normalise_projections: bool,
) -> Recurrence:
    return _from_projection(
        shape,
        Deviation(),
        step_scale,
        normalise_projections,
        drive=AnchoredInjection(shape, embedding_source, source_gain),
        update=Subtractive(),
    )


# ------------------------------------------------- the reference without sharing


def unshared(shape: Shape, *, layers: int) -> Recurrence:
    return Recurrence(
        UnsharedCore(shape, layers),
        Hidden(),
        start=EmbeddingStart(),
        anchor=NoAnchor(),
        gain=FixedScale(1.0),
    )


COMPOSERS = (
    looped,
    scalar_gate,
    channel_gate,
    norm_reset,
    adapter,
    step_adapter,
    film_adapter,
    scse,
    leak,
    sc_cond,
    sc_cond_subtractive,
    forcing_subtraction,
    unshared,
)
