"""The two native coordinates of a recurrence."""

from __future__ import annotations

import torch
from torch import Tensor

from scse.recurrence.base import Coordinates, Frame, anchor_of


class Hidden(Coordinates):
    """z = h: the state is the residual stream itself; Δ = z − h*."""

    def enter(self, h: Tensor, hidden_anchor: Tensor | None) -> Tensor:
        return h

    def native_anchor(self, hidden_anchor: Tensor | None) -> Tensor | None:
        return hidden_anchor

    def deviation(self, z: Tensor, frame: Frame) -> Tensor:
        return z - anchor_of(frame.anchor)

    def hidden(self, z: Tensor, frame: Frame) -> Tensor:
        return z


class Deviation(Coordinates):
    """z = Δ: the state is the displacement from the anchor; h = h* + z. The anchor is the zero tensor."""

    anchor_is_zero = True

    def enter(self, h: Tensor, hidden_anchor: Tensor | None) -> Tensor:
        return h - anchor_of(hidden_anchor)

    def native_anchor(self, hidden_anchor: Tensor | None) -> Tensor | None:
        return torch.zeros_like(anchor_of(hidden_anchor))

    def deviation(self, z: Tensor, frame: Frame) -> Tensor:
        return z

    def hidden(self, z: Tensor, frame: Frame) -> Tensor:
        return anchor_of(frame.hidden_anchor) + z
