"""What a model is: its family, the family's options, and its shape. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

from scse.catalogue import OptionValue
from scse.config.stored import check_fields, written
from scse.errors import UserError, checked_choice

GPT2_VOCABULARY = 50_257

POSITIONS = ("learned", "rope")
MLPS = ("swiglu", "relu2")


@dataclass(frozen=True)
class Shape:
    """The size and make of a model: embed → prelude → loop over the core → coda → norm → head.

    `norm_eps` and `init_std` are part of the shape because they are part of the function a checkpoint computes.

    The fields after `init_std` came later and have neutral defaults (`stored.py`).

    `prelude`, `core` and `coda` count layers. `positions` are learned vectors, or rotations of queries and keys with
    the base `rope_base`. `sandwich` puts a norm after attention and MLP as well as before; with `stream_norm` that norm
    is over the sum with the residual stream (Huginn's form) and not over the branch alone (Ouro's). `qk_norm` and
    `qk_bias` are for queries and keys. `kv_heads` is the number of key and value heads, 0 for as many as heads. `tied`
    says that the head is the token embedding, `embed_scale` what that is multiplied by on its way in. `gate` adds an
    exit gate to families that have none of their own. `mlp` is SwiGLU, or W_down relu(W_up x)² (Parcae's). With
    `value_embeddings` every second layer, counted through prelude, core and coda so that the last is one of them, adds
    an embedding of its token to its values.
    """

    width: int
    heads: int
    ff_width: int
    context: int = 128
    vocabulary: int = GPT2_VOCABULARY
    dropout: float = 0.1
    norm_eps: float = 1e-6
    init_std: float = 0.02
    prelude: int = 0
    core: int = 1
    coda: int = 0
    positions: str = "learned"
    rope_base: float = 10_000.0
    sandwich: bool = False
    stream_norm: bool = False
    qk_norm: bool = False
    qk_bias: bool = False
    kv_heads: int = 0
    tied: bool = True
    embed_scale: float = 1.0
    gate: bool = False
    mlp: str = "swiglu"
    value_embeddings: bool = False

    FIRST: ClassVar[tuple[str, ...]] = (
        "width",
        "heads",
        "ff_width",
        "context",
        "vocabulary",
        "dropout",
        "norm_eps",
        "init_std",
    )

    def __post_init__(self) -> None:
        for name in ("width", "heads", "ff_width", "context", "vocabulary"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
            if getattr(self, name) > LARGEST_SIZE:
                raise UserError(f"{name} must be at most {LARGEST_SIZE:,}, got {getattr(self, name):.3g}")
        if self.width % self.heads:
            nearest = next(h for h in range(min(self.heads, self.width), 0, -1) if self.width % h == 0)
            raise UserError(f"{self.heads} heads do not divide the width {self.width}; use for example {nearest} heads")
        if not 0 <= self.dropout <= 0.99:
            raise UserError(f"dropout must be between 0 and 0.99, got {self.dropout}")
        for name in ("norm_eps", "init_std", "rope_base", "embed_scale"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} must be positive, got {getattr(self, name)}")
        self._check_layers()

    def _check_layers(self) -> None:
        for name, least in (("prelude", 0), ("core", 1), ("coda", 0)):
            if not least <= getattr(self, name) <= MOST_LAYERS:
                raise UserError(f"{name} must be between {least} and {MOST_LAYERS} layers, got {getattr(self, name)}")
        checked_choice("kind of positions", self.positions, POSITIONS)
        checked_choice("kind of mlp", self.mlp, MLPS)
        if self.positions == "rope" and self.head_width % 2:
            raise UserError(f"rope turns pairs of channels, but a head has {self.head_width}; use an even number")
        if self.stream_norm and not self.sandwich:
            raise UserError("stream_norm says where the norm of sandwich=true stands; set that too")
        if self.kv_heads < 0 or self.heads % (self.kv_heads or self.heads):
            raise UserError(f"{self.kv_heads} key and value heads do not divide {self.heads} heads; 0 means as many")

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        """Of all keys of a position together, or all values."""
        return (self.kv_heads or self.heads) * self.head_width

    @property
    def layers(self) -> int:
        """In prelude, core and coda together."""
        return self.prelude + self.core + self.coda

    def valued(self, number: int) -> bool:
        """Whether layer `number`, counted through prelude, core and coda, adds an embedding to its values."""
        return self.value_embeddings and (self.layers - 1 - number) % 2 == 0

    def to_dict(self) -> dict[str, Any]:
        return written(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; an unknown field is an error, and so is a missing one of the first."""
        check_fields(cls, data, "shape field", "the model configuration's shape")
        kinds = {f.name: str(f.type) for f in fields(cls)}
        for name, value in data.items():
            _check_type(name, value, kinds[name])
        return cls(**data)


LARGEST_SIZE = 10**8  # of a width, a context or a vocabulary: the product of two is a number of weights still
MOST_LAYERS = 1000


def _check_type(name: str, value: object, kind: str) -> None:
    kinds: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}
    if not isinstance(value, kinds[kind]) or (kind in ("int", "float") and isinstance(value, bool)):
        wanted = {"bool": "true or false", "str": "a text"}.get(kind, "a number")
        raise UserError(f"'{name}' in a model configuration must be {wanted}, got {value!r}")


DEFAULT_SCALE = "mini"
SCALES: dict[str, Shape] = {
    "mini": Shape(width=128, heads=4, ff_width=512, vocabulary=4096),
    "22m": Shape(width=384, heads=6, ff_width=1536),
    "50m": Shape(width=768, heads=12, ff_width=3072),
    "96m": Shape(width=1280, heads=20, ff_width=5120),
    "137m": Shape(width=1664, heads=26, ff_width=6656),
    # Widths of the unshared controls that match the 22m model's parameters with 4 and 6 layers.
    "4x320": Shape(width=320, heads=5, ff_width=1280),
    "6x288": Shape(width=288, heads=6, ff_width=1152),
}


@dataclass(frozen=True)
class ModelConfig:
    """A model, fully resolved: `options` holds every option of the family, defaults included."""

    family: str
    shape: Shape
    options: Mapping[str, OptionValue] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"family": self.family, "options": dict(self.options), "shape": self.shape.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; what is missing or unknown is an error, except shape fields that came later."""
        try:
            shape, family, options = dict(data["shape"]), data["family"], dict(data["options"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"a model configuration needs 'family', 'options' and 'shape' ({error})") from None
        return cls(family=str(family), shape=Shape.from_dict(shape), options=options)


def scale(name: str) -> Shape:
    """The shape of a named scale."""
    return SCALES[checked_choice("scale", name, SCALES)]
