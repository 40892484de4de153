"""What a recurrence does at and around its anchor, through the one-step map alone."""

from scse.diagnostics.pointwise import StepDiagnosis, diagnose, local_expansion, random_direction_gain

__all__ = ["StepDiagnosis", "diagnose", "local_expansion", "random_direction_gain"]
