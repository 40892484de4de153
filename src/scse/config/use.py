"""How a trained model is used where nobody says otherwise, in the library and in the commands. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from scse.errors import UserError

DEPTHS = (1, 2, 4, 8, 12, 16, 24, 32, 48)  # of an evaluation
BATCH = 32  # windows at a time
CEILING = 48  # the most loops of what stops by itself
RULE = "update"  # by which it stops: the paper's
LOOPS, NEW_TOKENS = 8, 64  # of a continuation
TEMPERATURE, TOP_P = 0.8, 0.95  # and how its tokens are drawn
VECTOR_ORDER = 8  # of the vectors of the counterfactual theory
INJECTION_GAINS = (0.0, 0.5, 1.0, 2.0)  # what the trained gain is multiplied by in rollouts from the anchor


@dataclass(frozen=True)
class ExitTraining:
    """How a gate is trained: optimiser steps of `batch` sequences, each unrolled to `ceiling` loops."""

    steps: int = 200
    batch: int = 8
    ceiling: int = 16
    lr: float = 1e-2
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.ceiling < 2:
            raise UserError(f"the ceiling must be at least 2 loops, so that one can be spared, got {self.ceiling}")
        if not self.lr > 0:
            raise UserError(f"the learning rate must be positive, got {self.lr}")
