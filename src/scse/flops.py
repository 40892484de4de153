"""The paper's FLOP proxy: dominant matrix products per token, from a family's name and shape. No torch here."""

from __future__ import annotations

from scse.config import Shape

# Families that apply the block twice a step: at the state, and at the anchor.
TWO_BODIES = ("sc-cond-subtractive", "forcing-subtraction")
UNSHARED = "unshared-"


def body_applications(family: str, loops: float) -> float:
    """N_body(T); a mean number of loops gives the mean number of applications."""
    if family.startswith(UNSHARED):
        return min(loops, int(family.removeprefix(UNSHARED)))
    return 2 * loops if family in TWO_BODIES else loops


def body_flops(shape: Shape) -> int:
    """8d² + 6d·d_ff + 4Ld: one application of the block to one token, attention counted dense, as in the paper."""
    return 8 * shape.width**2 + 6 * shape.width * shape.ff_width + 4 * shape.context * shape.width


def head_flops(shape: Shape) -> int:
    """2d|V|: the vocabulary head on one token."""
    return 2 * shape.width * shape.vocabulary
