"""Parameter counts and the paper's FLOP proxy."""

from __future__ import annotations

from dataclasses import dataclass

from scse.config.model import ModelConfig
from scse.families import FAMILIES
from scse.flops import around_flops, body_flops, head_flops
from scse.model import LoopedLM, trainable_parameters
from scse.nn.without_storage import without_storage


@dataclass(frozen=True)
class ParameterCounts:
    """`active`: trainable parameters of our model. `paper`: as the paper counts, unused matrices included."""

    active: int
    paper: int


@dataclass(frozen=True)
class FlopProxy:
    """Dominant matrix products per token: all layers, and with the vocabulary head."""

    body: int
    body_head: int


def skeleton(config: ModelConfig) -> LoopedLM:
    """The model without storage, for counting."""
    with without_storage():
        return LoopedLM(config)


def count_parameters(config: ModelConfig) -> ParameterCounts:
    active = trainable_parameters(skeleton(config))
    extra = FAMILIES.find(config.family).paper_extra_matrices * config.shape.width**2
    return ParameterCounts(active=active, paper=active + extra)


def flop_proxy(config: ModelConfig, loops: int) -> FlopProxy:
    """N_body(T) applications of the core with the layers around it, and that plus the head, per token."""
    applications = int(FAMILIES.find(config.family).body_applications(loops))
    body = applications * body_flops(config.shape) + around_flops(config.shape)
    return FlopProxy(body=body, body_head=body + head_flops(config.shape))
