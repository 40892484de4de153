"""SCSE that is shown its input again: a family of our own, and the parts in which it differs from SCSE one by one.

What each option is by default, and the family's equation, stands in `scse.families`.
"""

from __future__ import annotations

from scse.config.model import Shape
from scse.errors import checked_choice
from scse.recurrence.anchors import (
    NormalisedAnchor,
    NormalisedStart,
    ProjectedStart,
    make_anchor,
)
from scse.recurrence.coordinates import Deviation
from scse.recurrence.drives import BareState
from scse.recurrence.injections import ProportionalRecall
from scse.recurrence.modifiers import Decay, FixedScale, KeepState, NoReset, StateNorm
from scse.recurrence.recurrence import Recurrence
from scse.recurrence.slots import Anchor, Start
from scse.recurrence.updates import SharedCore

RECALLS = ("orthogonal", "plain", "none")


def scse_recall(
    shape: Shape,
    *,
    step_scale: float,
    anchor: str,
    decay: bool,
    recall: str,
    state_norm: bool,
    normalise_source: bool,
    normalise_projections: bool,
) -> Recurrence:
    """Without decay, recall and norms it is SCSE without its mask, which its anchor does not need."""
    shown = checked_choice("recall", recall, RECALLS) != "none"
    begin: Start = ProjectedStart(shape, normalise_projections)
    origin: Anchor = make_anchor(anchor, shape, normalise_projections)
    if normalise_source:
        begin, origin = NormalisedStart(shape, begin), NormalisedAnchor(shape, origin)
    return Recurrence(
        SharedCore(shape),
        Deviation(),
        start=begin,
        anchor=origin,
        drive=ProportionalRecall(shape, recall == "orthogonal") if shown else BareState(),
        gain=FixedScale(step_scale),
        keep=Decay(shape) if decay else KeepState(),
        reset=StateNorm(shape) if state_norm else NoReset(),
    )


COMPOSERS = (scse_recall,)
