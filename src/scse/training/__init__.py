"""Training: the paper's protocol, exact resume, one process or many."""

from scse.protocols import PROTOCOLS, protocol
from scse.training.config import RunOptions, TrainConfig, assemble

__all__ = ["PROTOCOLS", "RunOptions", "TrainConfig", "assemble", "protocol"]
