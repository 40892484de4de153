"""What a model and a run are, and how they are resolved from names and settings. No torch here."""

from scse.config.model import GPT2_VOCABULARY, MOST_LAYERS, SCALES, ModelConfig, Shape, scale
from scse.config.protocols import FOR_DEPTH, PROTOCOLS, protocol
from scse.config.resolve import assemble, trained_as
from scse.config.training import Parent, RunOptions, TrainConfig, data_config, differences
from scse.precision import TRAINING as PRECISIONS

__all__ = [
    "FOR_DEPTH",
    "GPT2_VOCABULARY",
    "MOST_LAYERS",
    "PRECISIONS",
    "PROTOCOLS",
    "SCALES",
    "ModelConfig",
    "Parent",
    "RunOptions",
    "Shape",
    "TrainConfig",
    "assemble",
    "data_config",
    "differences",
    "protocol",
    "scale",
    "trained_as",
]
