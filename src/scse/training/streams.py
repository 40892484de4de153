"""Randomness of a run as pure functions of (seed, purpose, step): nothing to save, nothing to lose on resume.

Each purpose is its own stream, so that changing one (say, the depth sampler) leaves the others as they were.
"""

from __future__ import annotations

import numpy as np

from scse.config import TrainConfig

_PURPOSES = {"initialisation": 0, "data": 1, "depth": 2, "dropout": 3}


def generator(seed: int, purpose: str, *position: int) -> np.random.Generator:
    return np.random.default_rng([seed, _PURPOSES[purpose], *position])


def initialisation_seed(seed: int) -> int:
    return int(generator(seed, "initialisation").integers(2**63))


def dropout_seed(seed: int, step: int, micro_batch: int) -> int:
    """For torch's generator, before each micro-batch; the same on whichever process works on it."""
    return int(generator(seed, "dropout", step, micro_batch).integers(2**63))


def loop_depths(config: TrainConfig, step: int) -> int | np.ndarray:
    """The depth of a step, or of each of its sequences, as the run's sampler draws it; the same on all processes."""
    return config.sampler.draw(generator(config.seed, "depth", step), step, config.batch)
