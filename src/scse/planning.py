"""What training would cost on hardware that is not here: time, memory by strategy, checkpoints. No torch here.

Time is the matrix products of `flops.py`, three times for forward and backward, over the rate that accelerators are
taken to reach. Memory is what training holds in this package: float32 weights, gradients and moments, 16-bit copies of
the weights under autocast, and activations for every application of a layer. Both are estimates: `docs/cluster.md` says
how they compare with what was measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scse.config.model import Shape
from scse.config.training import SHARDED, STRATEGIES, TrainConfig
from scse.families import FAMILIES
from scse.flops import layer_flops

GIB = 2**30
WEIGHT, GRADIENT, MOMENTS, COPY = 4, 4, 8, 2  # bytes per parameter; COPY is autocast's, in 16 bits


@dataclass(frozen=True)
class Accelerator:
    """Dense 16-bit matrix products in FLOP/s as the vendor states them, memory in GiB, and how many share a node.

    `utilisation` is the share of that rate which training is taken to reach: an assumption, which wide models on long
    batches meet and narrow ones do not.
    """

    name: str
    peak: float
    memory: float
    per_node: int = 8
    utilisation: float = 0.35


ACCELERATORS = {
    found.name: found
    for found in (
        Accelerator("v100", 125e12, 32),
        Accelerator("rtx4090", 165e12, 24),
        Accelerator("l40s", 362e12, 48),
        Accelerator("a100", 312e12, 80),
        Accelerator("h100", 989e12, 80),
        Accelerator("h200", 989e12, 141),
        Accelerator("mi300x", 1307e12, 192),
        Accelerator("b200", 2250e12, 180),
    )
}

# Shapes for planning alone: nobody has trained them here. A looped core of several layers between a prelude and a coda.
_LARGE = {"context": 2048, "tokenizer": "gpt2", "batch": 512, "dropout": 0.0}
PLANNED: dict[str, dict[str, object]] = {
    "1b": {**_LARGE, "width": 2048, "heads": 16, "ff_width": 8192, "prelude": 2, "core": 8, "coda": 2},
    "3b": {**_LARGE, "width": 3072, "heads": 24, "ff_width": 12_288, "prelude": 3, "core": 12, "coda": 3},
    "7b": {**_LARGE, "width": 4096, "heads": 32, "ff_width": 16_384, "prelude": 4, "core": 16, "coda": 4},
}
NARROW = 1024  # below this width the products of a layer are too small for the assumed utilisation
TOKENS_PER_PARAMETER = 20  # how long a planned shape is trained unless told


def parameters(config: TrainConfig) -> int:
    """Weights of the layers, the embedding and the positions; what a family adds to them is left out."""
    shape, row = config.model.shape, FAMILIES.find(config.model.family)
    layers = shape.prelude + shape.coda + (row.own_depth or 1) * shape.core
    tables = shape.vocabulary * (1 if shape.tied else 2) + (shape.context if shape.positions == "learned" else 0)
    values = sum(map(shape.valued, range(shape.layers))) * shape.vocabulary * shape.kv_width
    return layers * layer_parameters(shape) + tables * shape.width + values


def layers_alone(config: TrainConfig) -> int:
    """How many layers a step applies once: those around the loops, and all where none is shared."""
    shape, row = config.model.shape, FAMILIES.find(config.model.family)
    return shape.prelude + shape.coda + (row.own_depth or 0) * shape.core


def layer_parameters(shape: Shape) -> int:
    """2d² + 2d·d_kv + 3d·d_ff: half the matrix products of a layer, attention's scores aside."""
    return (layer_flops(shape) - 4 * shape.context * shape.width) // 2


@dataclass(frozen=True)
class Pace:
    """How fast a run would be on a number of GPUs."""

    accelerator: str
    gpus: int
    nodes: int
    tokens_per_second: float
    hours: float
    gpu_hours: float


def pace(flops: float, tokens: float, accelerator: Accelerator, gpus: int, utilisation: float | None) -> Pace:
    rate = gpus * accelerator.peak * (utilisation or accelerator.utilisation)
    seconds = flops / rate
    nodes = math.ceil(gpus / accelerator.per_node)
    return Pace(accelerator.name, gpus, nodes, tokens / seconds, seconds / 3600, gpus * seconds / 3600)


@dataclass(frozen=True)
class Memory:
    """Bytes on each GPU, at its fullest. `micro_batches` is how many parts a process works through in a step."""

    strategy: str
    recompute: bool
    micro_batches: int
    weights: float
    activations: float

    @property
    def total(self) -> float:
        return self.weights + self.activations


def weight_bytes(count: int, strategy: str, gpus: int, alone: int = 0, layer: int = 0) -> float:
    """What weights, gradients and moments take on each GPU.

    DDP holds all of it and buckets for gradients. FSDP holds a share, and during a step the whole of what every loop
    needs: weights, gradients and 16-bit copies. Of the `alone` weights in layers that a step applies once, it holds
    two layers, the one at work and the one that is fetched: weights and gradients, both in 16 bits. HSDP is FSDP over
    the `gpus` of one node.
    """
    own = WEIGHT + GRADIENT + MOMENTS
    if gpus == 1:
        return count * (own + COPY)
    if strategy in SHARDED:
        return count * own / gpus + (count - alone) * (WEIGHT + GRADIENT + COPY) + 2 * min(layer, alone) * 2 * COPY
    return count * (own + COPY + GRADIENT)


def activation_bytes(config: TrainConfig, sequences: int, recompute: bool) -> float:
    """What the deepest unroll keeps for its backward pass, in 16 bits but for the state: of the last `backprop` loops
    where a run says so.

    A layer keeps some eight vectors of the width (norms, queries, keys, values, outputs, sums) and four of the MLP's;
    recomputation keeps the state before each application of the core, and one application.
    """
    shape, row = config.model.shape, FAMILIES.find(config.model.family)
    loops = row.own_depth or config.sampler.deepest
    deepest = row.body_applications(min(loops, config.backprop or loops))
    layer = 2 * (8 * shape.width + 4 * shape.ff_width)
    state = 4 * shape.width
    around = (shape.prelude + shape.coda) * layer
    core = shape.core * layer
    kept = deepest * state + core if recompute else deepest * (state + core)
    return sequences * shape.context * (kept + around)


def strategies(gpus: int, per_node: int) -> tuple[str, ...]:
    """Those that differ: HSDP needs several nodes, and anything but DDP several GPUs."""
    return STRATEGIES if gpus > per_node else STRATEGIES[: min(gpus, 2)]


def memory(config: TrainConfig, strategy: str, gpus: int, per_node: int, available: float, recompute: bool) -> Memory:
    """With as many micro-batches as it takes to fit, if it can be made to."""
    layer = layer_parameters(config.model.shape)
    shared_by = min(gpus, per_node) if strategy == "hsdp" else gpus
    weights = weight_bytes(parameters(config), strategy, shared_by, layers_alone(config) * layer, layer)
    each = max(1, config.batch // gpus)
    parts = max(1, config.micro_batches // gpus)
    while True:
        sequences = math.ceil(each / parts)
        found = Memory(strategy, recompute, parts, weights, activation_bytes(config, sequences, recompute))
        if found.total <= available or sequences == 1:
            return found
        parts *= 2


def checkpoint_bytes(config: TrainConfig) -> int:
    """Weights and both moments, as they are written."""
    return parameters(config) * (WEIGHT + MOMENTS)
