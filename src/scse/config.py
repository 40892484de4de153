"""What a model is: its family, the family's options, and its shape. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from scse.errors import UserError, unknown_name

GPT2_VOCABULARY = 50_257

OptionValue = bool | int | float | str


@dataclass(frozen=True)
class Shape:
    """The size of a model.

    `norm_eps` and `init_std` are part of the shape because they are part of the function a checkpoint computes.
    """

    width: int
    heads: int
    ff_width: int
    context: int = 128
    vocabulary: int = GPT2_VOCABULARY
    dropout: float = 0.1
    norm_eps: float = 1e-6
    init_std: float = 0.02

    def __post_init__(self) -> None:
        for name in ("width", "heads", "ff_width", "context", "vocabulary"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            nearest = next(h for h in range(min(self.heads, self.width), 0, -1) if self.width % h == 0)
            raise UserError(f"{self.heads} heads do not divide the width {self.width}; use for example {nearest} heads")
        if not 0 <= self.dropout <= 0.99:
            raise UserError(f"dropout must be between 0 and 0.99, got {self.dropout}")
        for name in ("norm_eps", "init_std"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} must be positive, got {getattr(self, name)}")


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
        return {"family": self.family, "options": dict(self.options), "shape": asdict(self.shape)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; keys that are missing or unknown are an error, never a default."""
        try:
            shape, family, options = dict(data["shape"]), data["family"], dict(data["options"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"a model configuration needs 'family', 'options' and 'shape' ({error})") from None
        known = {f.name: f.type for f in fields(Shape)}
        for name in shape:
            if name not in known:
                raise unknown_name("shape field", name, known)
        for name, kind in known.items():
            if name not in shape:
                raise UserError(f"the model configuration's shape lacks '{name}'")
            wanted = int if kind == "int" else (int, float)
            if isinstance(shape[name], bool) or not isinstance(shape[name], wanted):
                raise UserError(f"'{name}' in a model configuration must be a number, got {shape[name]!r}")
        return cls(family=str(family), shape=Shape(**shape), options=options)


def scale(name: str) -> Shape:
    """The shape of a named scale."""
    if name not in SCALES:
        raise unknown_name("scale", name, SCALES)
    return SCALES[name]
