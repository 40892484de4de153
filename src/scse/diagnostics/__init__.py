"""What a recurrence does at and around its anchor, through the one-step map alone."""

from scse.diagnostics.pointwise import (
    Decomposition,
    StepDiagnosis,
    decompose,
    diagnose,
    local_expansion,
    random_direction_gain,
)

__all__ = ["Decomposition", "StepDiagnosis", "decompose", "diagnose", "local_expansion", "random_direction_gain"]
