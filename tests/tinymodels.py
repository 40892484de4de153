"""Small models and inputs for the tests. Every family of the table goes by the name a user would type."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from scse import FAMILIES, LoopedLM, Shape, model_config

TINY = Shape(width=24, heads=3, ff_width=48, context=16, vocabulary=61)
# Every option of the shape, in three makes: more layers alone, all that fits together, and Huginn's place for the norm.
SHAPES = {
    "block": TINY,
    "layers": replace(TINY, prelude=1, core=2, coda=2),
    "everything": replace(
        TINY, prelude=1, core=2, coda=1, positions="rope", rope_base=100.0, sandwich=True, qk_norm=True, qk_bias=True,
        kv_heads=1, tied=False, embed_scale=2.0, mlp="relu2",
    ),
    "stream": replace(TINY, core=2, coda=1, positions="rope", sandwich=True, stream_norm=True),
}  # fmt: skip
# Layers that add embeddings of their tokens to their values: in prelude, core and coda. With them B(0) is not 0.
VALUED = replace(
    TINY, prelude=2, core=2, coda=2, positions="rope", qk_norm=True, kv_heads=1, mlp="relu2", value_embeddings=True
)
NAMES = [family.name.replace("-N", "-3") for family in FAMILIES]


def tiny(family: str, seed: int = 0, shape: Shape = TINY, dtype=torch.float64, spread: float = 0.2, **options):
    """A small model in evaluation mode whose weights are large enough that every term of its equation shows."""
    model = LoopedLM(model_config(family, shape, options), seed=seed).to(dtype).eval()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(dtype)
            parameter.add_(spread * noise)
    return model


def anchored(family: str) -> bool:
    """Whether the family has an anchor; the others say so when asked for deviations."""
    model = tiny(family)
    return model.recurrence.begin(model.embed(some_ids())).anchor is not None


def some_ids(batch: int = 3, length: int = 11, vocabulary: int = TINY.vocabulary, seed: int = 5) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(seed))


def shift_tensors(weights: Path, by: int) -> None:
    """Write a safetensors file again with its tensors `by` bytes further on, so that a map of it has them elsewhere."""
    content = weights.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = content[8:end] + b" " * by
    weights.write_bytes(len(header).to_bytes(8, "little") + header + content[end:])


def displace(model: torch.nn.Module, by: int) -> None:
    """Let every weight begin `by` elements into a larger buffer."""
    for parameter in model.parameters():
        buffer = parameter.new_empty(parameter.numel() + by)
        parameter.data = buffer[by:].view(parameter.shape).copy_(parameter.data)
