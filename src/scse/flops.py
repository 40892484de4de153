"""The paper's FLOP proxy: dominant matrix products of a token and of a step of training. No torch here.

What a family does outside of its layers (gates, injections, clocks) is not counted, as in the paper; docs/rivals.md
says how much that is.
"""

from __future__ import annotations

from scse.config.model import Shape
from scse.config.training import TrainConfig
from scse.families import FAMILIES


def layer_flops(shape: Shape) -> int:
    """4d² + 4d·d_kv + 6d·d_ff + 4Ld: one layer on one token, attention counted dense, as in the paper (d_kv = d).

    An MLP without a gate has two matrices of the three: 4d·d_ff.
    """
    d, matrices = shape.width, 3 if shape.mlp == "swiglu" else 2
    return 4 * d**2 + 4 * d * shape.kv_width + 2 * matrices * d * shape.ff_width + 4 * shape.context * d


def body_flops(shape: Shape) -> int:
    """One application of the core, all its layers, to one token."""
    return shape.core * layer_flops(shape)


def around_flops(shape: Shape) -> int:
    """The layers of prelude and coda on one token."""
    return (shape.prelude + shape.coda) * layer_flops(shape)


def head_flops(shape: Shape) -> int:
    """2d|V|: the vocabulary head on one token."""
    return 2 * shape.width * shape.vocabulary


def token_flops(shape: Shape, applications: float) -> float:
    """Everything on one token: so many applications of the core, what is around them, and the head."""
    return applications * body_flops(shape) + around_flops(shape) + head_flops(shape)


def step_flops(config: TrainConfig, loops: float | None = None, extra: int = 0) -> float:
    """Forward and twice that backward, over all tokens of an optimiser step.

    Without `loops` it is the mean over the depths that training samples: a step costs a constant and so much a loop, so
    that the mean depth has the mean cost. Only the last `backprop` loops are gone through backward, where a run says
    so; shallow steps then cost a little less than their mean here. `extra` steps are taken by terms of the objective;
    what a term over many loops reads out more often is not counted.
    """
    row, shape = FAMILIES.find(config.model.family), config.model.shape
    depth = (row.own_depth or config.sampler.mean) if loops is None else loops
    forward = row.body_applications(depth + extra)
    backward = row.body_applications(min(depth, config.backprop or depth) + extra)
    return config.tokens_per_step * (token_flops(shape, forward) + 2.0 * token_flops(shape, backward))
