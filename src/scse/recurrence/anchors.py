"""Where a trajectory starts, h_0 = H_0(e), and what it is measured from, the anchor h*(e).

Both learned maps are e + 0.1·W n(e). The normalisation n is our reading of the paper (docs/readings.md).
"""

from __future__ import annotations

from torch import Tensor, nn

from scse.config.model import Shape
from scse.errors import checked_choice
from scse.nn import rms_normalise
from scse.nn.products import Linear
from scse.recurrence.slots import Anchor, Start

PROJECTION_SCALE = 0.1


class Projection(nn.Module):
    """P(e) = e + 0.1·W n(e), or e + 0.1·W e when not normalised."""

    def __init__(self, shape: Shape, normalise: bool) -> None:
        super().__init__()
        self.eps = shape.norm_eps
        self.normalise = normalise
        self.proj = Linear(shape.width, shape.width, bias=False)

    def forward(self, e: Tensor) -> Tensor:
        source = rms_normalise(e, self.eps) if self.normalise else e
        projected: Tensor = self.proj(source)
        return e + PROJECTION_SCALE * projected


class EmbeddingStart(Start):
    """h_0 = e"""

    def forward(self, e: Tensor, positions: Tensor | None = None) -> Tensor:
        return e


class ProjectedStart(Start):
    """h_0 = H_0(e) = e + 0.1·W_init n(e)"""

    def __init__(self, shape: Shape, normalise: bool = True) -> None:
        super().__init__()
        self.map = Projection(shape, normalise)

    def forward(self, e: Tensor, positions: Tensor | None = None) -> Tensor:
        start: Tensor = self.map(e)
        return start


class NormalisedStart(Start):
    """h_0 = H(n(e)) for another start H"""

    def __init__(self, shape: Shape, inner: Start) -> None:
        super().__init__()
        self.eps = shape.norm_eps
        self.inner = inner

    def forward(self, e: Tensor, positions: Tensor | None = None) -> Tensor:
        start: Tensor = self.inner(rms_normalise(e, self.eps), positions)
        return start


class NoAnchor(Anchor):
    """None: nothing to measure from, as with unshared layers."""

    def forward(self, e: Tensor, start: Tensor) -> None:
        return None


class EmbeddingAnchor(Anchor):
    """h* = e"""

    def forward(self, e: Tensor, start: Tensor) -> Tensor:
        return e


class InitialAnchor(Anchor):
    """h* = H_0(e): the initial deviation is exactly zero, and a zero-preserving recurrence never moves."""

    def forward(self, e: Tensor, start: Tensor) -> Tensor:
        return start


class LearnedAnchor(Anchor):
    """h* = e + 0.1·W_anchor n(e)"""

    def __init__(self, shape: Shape, normalise: bool = True) -> None:
        super().__init__()
        self.map = Projection(shape, normalise)

    def forward(self, e: Tensor, start: Tensor) -> Tensor:
        anchor: Tensor = self.map(e)
        return anchor


class RandomAnchor(LearnedAnchor):
    """h* = e + 0.1·W_random n(e) with W_random drawn once and never trained."""

    def __init__(self, shape: Shape, normalise: bool = True) -> None:
        super().__init__(shape, normalise)
        self.map.proj.weight.requires_grad_(False)


class NormalisedAnchor(Anchor):
    """h*(n(e)) for another anchor h*"""

    def __init__(self, shape: Shape, inner: Anchor) -> None:
        super().__init__()
        self.eps = shape.norm_eps
        self.inner = inner

    def forward(self, e: Tensor, start: Tensor) -> Tensor | None:
        anchor: Tensor | None = self.inner(rms_normalise(e, self.eps), start)
        return anchor


ANCHORS = ("learned", "embedding", "initial", "random")


def make_anchor(name: str, shape: Shape, normalise: bool = True) -> Anchor:
    if checked_choice("anchor", name, ANCHORS) == "embedding":
        return EmbeddingAnchor()
    if name == "initial":
        return InitialAnchor()
    return LearnedAnchor(shape, normalise) if name == "learned" else RandomAnchor(shape, normalise)
