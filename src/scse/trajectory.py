"""What happens over the loops, as tensors: for looking, plotting and probing.

Shapes: T loops, B batch, L positions, d width.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from scse.errors import UserError, checked_choice

if TYPE_CHECKING:
    from scse.model import LoopedLM

PARTS = ("states", "deviations", "updates", "predictions")


@dataclass(frozen=True)
class Trajectory:
    """Loop by loop from h_0 to h_T; what was not asked for is None.

    `states` are h_t and `deviations` h_t − h* [T+1, B, L, d]; `updates` are h_{t+1} − h_t [T, B, L, d]; `predictions`
    are the likeliest next tokens read out of each h_t [T+1, B, L].
    """

    states: Tensor | None = None
    deviations: Tensor | None = None
    updates: Tensor | None = None
    predictions: Tensor | None = None


@torch.no_grad()
def record(model: LoopedLM, ids: Tensor, loops: int, keep: Collection[str]) -> Trajectory:
    """The trajectory of an input, from one unroll. Memory is what is kept: (T+1)·B·L·d numbers for each of the first
    three parts; the logits behind the predictions exist for one loop at a time."""
    if loops < 1:
        raise UserError(f"loops must be at least 1, got {loops}")
    for part in keep:
        checked_choice("part of a trajectory", part, PARTS)
    found: dict[str, list[Tensor]] = {part: [] for part in PARTS if part in keep}
    before: Tensor | None = None
    for state in islice(model.unroll(ids), loops + 1):
        bare = state.bare
        if "states" in found:
            found["states"].append(bare)
        if "deviations" in found:
            found["deviations"].append(state.deviation)
        if "updates" in found and before is not None:
            found["updates"].append(bare - before)
        if "predictions" in found:
            found["predictions"].append(model.readout(state.hidden).argmax(-1))
        before = bare
    return Trajectory(**{part: torch.stack(parts) for part, parts in found.items()})
