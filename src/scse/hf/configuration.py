"""The configuration that `transformers` reads and writes."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig

from scse.config.model import ModelConfig, Shape
from scse.config.use import LOOPS
from scse.families import DEFAULT_FAMILY

# the names `transformers` knows, and ours
SHAPE_FIELDS = {
    "vocab_size": "vocabulary",
    "hidden_size": "width",
    "num_attention_heads": "heads",
    "intermediate_size": "ff_width",
    "max_position_embeddings": "context",
    "dropout": "dropout",
    "norm_eps": "norm_eps",
    "initializer_range": "init_std",
}


class ScseConfig(PreTrainedConfig):
    """A looped Transformer: the family of its recurrence with all options, its shape, and how deep it loops.

    `num_loops` is the default depth; a call or a generation configuration may ask for another. `shape_options` holds
    the fields of the shape that came after those named here, where they are not neutral.
    """

    model_type = "scse"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012

    family: str = DEFAULT_FAMILY
    options: dict[str, Any] | None = None
    num_loops: int = LOOPS
    vocab_size: int = 50_257
    hidden_size: int = 384
    num_attention_heads: int = 6
    intermediate_size: int = 1536
    max_position_embeddings: int = 128
    num_hidden_layers: int = 1
    dropout: float = 0.1
    norm_eps: float = 1e-6
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    shape_options: dict[str, Any] | None = None

    def model_config(self) -> ModelConfig:
        """What the model inside is built from."""
        named = {ours: getattr(self, theirs) for theirs, ours in SHAPE_FIELDS.items()}
        shape = Shape.from_dict({**named, **(self.shape_options or {})})
        return ModelConfig(self.family, shape, dict(self.options or {}))

    @classmethod
    def of(cls, model: ModelConfig, num_loops: int, **more: Any) -> ScseConfig:
        """The configuration of a model of ours."""
        stated = model.shape.to_dict()
        named = {theirs: stated.pop(ours) for theirs, ours in SHAPE_FIELDS.items()}
        named |= {
            "num_hidden_layers": model.shape.prelude + model.shape.core + model.shape.coda,
            "tie_word_embeddings": model.shape.tied,
            "shape_options": stated,
        }
        return cls(family=model.family, options=dict(model.options), num_loops=num_loops, **named, **more)
