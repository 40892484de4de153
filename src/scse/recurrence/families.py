"""The table of families: name, equation, composition. This is the only place that knows families by name.

A composer is a function from a shape to a recurrence. Its docstring is the family's equation, its keyword arguments
are the family's options with their defaults. A row of the table names a composer, with other defaults where the
paper reports a variant under its own label. `docs/adding-a-family.md` walks through adding one.

Notation: B = G the block's update, n parameter-free RMS normalisation, m the zero-deviation mask, σ the sigmoid.
"""

from __future__ import annotations

from typing import Any

from scse.config import Shape
from scse.recurrence.anchors import Anchor, EmbeddingAnchor, EmbeddingStart, ProjectedStart, make_anchor
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
from scse.recurrence.modifiers import ChannelGate, FixedScale, Leak, NoMask, PeriodicReset, ScalarGate, make_mask
from scse.recurrence.recurrence import Recurrence
from scse.recurrence.registry import Family, FamilyTable
from scse.recurrence.updates import SharedCore, Subtractive, UnsharedCore

# The paper's values: SCSE's s, the tuned rows' s, the initial α and κ, ε. Which families share them: docs/readings.md
STEP_SCALE = 0.5
TUNED_STEP_SCALE = 0.35
SOURCE_GAIN = 0.15
MASK_THRESHOLD = 1e-8

# ------------------------------------------------- start e, anchor e: the additive baseline and its stabilisers


def _from_embedding(shape: Shape, source_gain: float, **units: Any) -> Recurrence:
    drive = Injection(shape, embedding_source, source_gain)
    return Recurrence(
        SharedCore(shape),
        Hidden(),
        start=EmbeddingStart(),
        anchor=EmbeddingAnchor(shape),
        drive=drive,
        **units,
    )


def looped(shape: Shape, *, step_scale: float = STEP_SCALE, source_gain: float = SOURCE_GAIN) -> Recurrence:
    """h' = h + s·B(h + αW_in e)"""
    return _from_embedding(shape, source_gain, gain=FixedScale(step_scale))


def scalar_gate(shape: Shape, *, gate_start: float = STEP_SCALE, source_gain: float = SOURCE_GAIN) -> Recurrence:
    """h' = h + g·B(h + αW_in e), g learned"""
    return _from_embedding(shape, source_gain, gain=ScalarGate(gate_start))


def channel_gate(shape: Shape, *, source_gain: float = SOURCE_GAIN) -> Recurrence:
    """h' = h + σ(W_g n(h) + b_g) ⊙ B(h + αW_in e)"""
    return _from_embedding(shape, source_gain, gain=ChannelGate(shape))


def norm_reset(
    shape: Shape, *, step_scale: float = STEP_SCALE, source_gain: float = SOURCE_GAIN, reset_period: int = 4
) -> Recurrence:
    """h' = h + s·B(h + αW_in e); after every p-th step h' ← n(h')"""
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
    shape: Shape, step_scale: float, source_gain: float, mask: NoMask, normalise: bool, **units: Any
) -> Recurrence:
    drive = Injection(shape, anchor_source, source_gain)
    return _from_projection(shape, Deviation(), step_scale, normalise, drive=drive, mask=mask, **units)


def adapter(
    shape: Shape,
    *,
    step_scale: float = STEP_SCALE,
    source_gain: float = SOURCE_GAIN,
    normalise_projections: bool = True,
) -> Recurrence:
    """h' = h + s·B(h + αW_in h*)"""
    drive = Injection(shape, anchor_source, source_gain)
    return _from_projection(shape, Hidden(), step_scale, normalise_projections, drive=drive)


def step_adapter(
    shape: Shape,
    *,
    step_scale: float = TUNED_STEP_SCALE,
    source_gain: float = SOURCE_GAIN,
    step_signal: float = 0.015,
    normalise_projections: bool = True,
) -> Recurrence:
    """h' = h + s·B(h + αW_in h* + τP_step γ_t)"""
    drive = StepSignal(shape, Injection(shape, anchor_source, source_gain), step_signal)
    return _from_projection(shape, Hidden(), step_scale, normalise_projections, drive=drive)


def film_adapter(
    shape: Shape,
    *,
    step_scale: float = TUNED_STEP_SCALE,
    source_gain: float = SOURCE_GAIN,
    film_scale: float = 0.1,
    film_steps: int = 8,
    normalise_projections: bool = True,
) -> Recurrence:
    """h' = h + s·B((1 + ρg_t) ⊙ (h + αW_in h*) + ρb_t)"""
    drive = StepFilm(shape, Injection(shape, anchor_source, source_gain), film_scale, film_steps)
    return _from_projection(shape, Hidden(), step_scale, normalise_projections, drive=drive)


def scse(
    shape: Shape,
    *,
    step_scale: float = STEP_SCALE,
    anchor: str = "learned",
    mask: bool = True,
    mask_threshold: float = MASK_THRESHOLD,
    normalise_projections: bool = True,
) -> Recurrence:
    """Δ' = Δ + m·s·G(Δ)"""
    zero_mask = make_mask(mask, mask_threshold)
    return _from_projection(shape, Deviation(), step_scale, normalise_projections, anchor, mask=zero_mask)


def leak(
    shape: Shape,
    *,
    step_scale: float = STEP_SCALE,
    source_gain: float = SOURCE_GAIN,
    leak: float = 0.02,
    mask: bool = True,
    mask_threshold: float = MASK_THRESHOLD,
    normalise_projections: bool = True,
) -> Recurrence:
    """Δ' = (1 − λ)Δ + m·s·G(Δ + κW_c h*)"""
    zero_mask = make_mask(mask, mask_threshold)
    return _conditioned(shape, step_scale, source_gain, zero_mask, normalise_projections, keep=Leak(leak))


def sc_cond(
    shape: Shape,
    *,
    step_scale: float = STEP_SCALE,
    source_gain: float = SOURCE_GAIN,
    mask: bool = True,
    mask_threshold: float = MASK_THRESHOLD,
    normalise_projections: bool = True,
) -> Recurrence:
    """Δ' = Δ + m·s·G(Δ + κW_c h*)"""
    return _conditioned(shape, step_scale, source_gain, make_mask(mask, mask_threshold), normalise_projections)


def sc_cond_subtractive(
    shape: Shape,
    *,
    step_scale: float = STEP_SCALE,
    source_gain: float = SOURCE_GAIN,
    mask: bool = False,
    mask_threshold: float = MASK_THRESHOLD,
    normalise_projections: bool = True,
) -> Recurrence:
    """Δ' = Δ + s·(G(Δ + c) − G(c)), c = κW_c h*"""
    zero_mask = make_mask(mask, mask_threshold)
    return _conditioned(shape, step_scale, source_gain, zero_mask, normalise_projections, update=Subtractive())


def forcing_subtraction(
    shape: Shape,
    *,
    step_scale: float = STEP_SCALE,
    source_gain: float = SOURCE_GAIN,
    normalise_projections: bool = True,
) -> Recurrence:
    """Δ' = Δ + s·(B(h* + Δ + αW_in e) − B(h* + αW_in e))"""
    return _from_projection(
        shape,
        Deviation(),
        step_scale,
        normalise_projections,
        drive=AnchoredInjection(shape, embedding_source, source_gain),
        update=Subtractive(),
    )


# ------------------------------------------------- the reference without sharing


def unshared(shape: Shape, *, layers: int = 8) -> Recurrence:
    """h' = h + B_t(h) for t < N, then h' = h"""
    return Recurrence(
        UnsharedCore(shape, layers),
        Hidden(),
        start=EmbeddingStart(),
        anchor=Anchor(shape),
        gain=FixedScale(1.0),
    )


# ------------------------------------------------- the table

FAMILIES = FamilyTable(
    Family("looped", "Looped Transformer baseline", looped),
    Family("looped-s035", "Residual step scale s=0.35", looped, {"step_scale": TUNED_STEP_SCALE}),
    Family("scalar-gate", "Learned scalar gate", scalar_gate),
    Family("channel-gate", "Channel recurrent gate", channel_gate),
    Family("norm-reset", "Periodic normalization reset", norm_reset),
    Family("adapter", "Capacity-matched adapter", adapter),
    Family("tuned-adapter", "Tuned adapter, s=0.35", adapter, {"step_scale": TUNED_STEP_SCALE}),
    Family("step-adapter", "Recurrent-step-conditioned adapter", step_adapter),
    Family("film-adapter", "Step-FiLM adapter", film_adapter),
    # The paper's counts for SCSE include a conditioning matrix W_c that its recurrence never applies.
    Family("scse", "SCSE, s=0.50", scse, paper_extra_matrices=1),
    Family("scse-embedding", "SCSE, anchor e", scse, {"anchor": "embedding"}, paper_extra_matrices=1),
    Family("scse-initial", "SCSE, anchor H_0(e)", scse, {"anchor": "initial"}, paper_extra_matrices=1),
    Family("scse-random", "SCSE, frozen random anchor", scse, {"anchor": "random"}, paper_extra_matrices=1),
    Family("sc-cond", "SC-Cond, masked", sc_cond),
    Family("sc-cond-unmasked", "SC-Cond, no mask", sc_cond, {"mask": False}, step="Δ' = Δ + s·G(Δ + κW_c h*)"),
    Family("sc-cond-subtractive", "SC-Cond, subtractive", sc_cond_subtractive),
    Family("forcing-subtraction", "Additive + forcing subtraction", forcing_subtraction),
    Family("leak", "Leak diagnostic", leak),
    Family("unshared-N", "Unshared Transformer-N", unshared, numbered="layers"),
)
