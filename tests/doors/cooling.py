"""A guest: SCSE whose step is scaled by a factor of the user's."""

from scse import Recurrence, Shape, family, register
from scse.recurrence.anchors import LearnedAnchor, ProjectedStart
from scse.recurrence.coordinates import Deviation
from scse.recurrence.modifiers import FixedScale
from scse.recurrence.updates import SharedCore


def cooled(shape: Shape, *, step_scale: float = 0.3) -> Recurrence:
    """Δ' = Δ + s·G(Δ)"""
    return Recurrence(
        SharedCore(shape),
        Deviation(),
        start=ProjectedStart(shape),
        anchor=LearnedAnchor(shape),
        gain=FixedScale(step_scale),
    )


register(family("cooled", cooled, "SCSE, cooled"))
