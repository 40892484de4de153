"""Training: the paper's protocol, exact resume, one process or many."""

from scse.training.config import RunOptions, TrainConfig, assemble
from scse.training.protocols import PROTOCOLS, protocol

__all__ = ["PROTOCOLS", "RunOptions", "TrainConfig", "assemble", "protocol"]
