"""When an example has moved little enough to stop: exit rules, each a small object with one statistic.

An example stops after the first step whose statistic is at most a threshold. Shapes: B batch, L positions, d width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from scse.model import LoopedLM
from scse.nn.block import Pasts
from scse.registry import Registry

Codas = tuple[Pasts | None, Pasts | None]
NO_PAST: Codas = (None, None)


class ExitRule(ABC):
    """One statistic per token. Yours is registered with `RULES.register(MyRule())` and chosen by its name."""

    name: ClassVar[str]

    @abstractmethod
    def statistic(self, model: LoopedLM, before: Tensor, after: Tensor, codas: Codas = NO_PAST) -> Tensor:
        """How much each token changed from h_t to h_{t+1} [B, L]; an example's is the largest of its tokens.

        Under a cache, `codas` are what a coda has seen of earlier positions after t and after t + 1 loops.
        """


class UpdateNorm(ExitRule):
    """‖h_{t+1} − h_t‖₂, the paper's rule."""

    name = "update"

    def statistic(self, model: LoopedLM, before: Tensor, after: Tensor, codas: Codas = NO_PAST) -> Tensor:
        return _norm(after - before)


class RelativeUpdate(ExitRule):
    """‖h_{t+1} − h_t‖₂ / ‖h_{t+1}‖₂, which does not care about the scale of the state."""

    name = "relative"

    def statistic(self, model: LoopedLM, before: Tensor, after: Tensor, codas: Codas = NO_PAST) -> Tensor:
        return _norm(after - before) / _norm(after).clamp_min(torch.finfo(after.dtype).tiny)


class PredictionKL(ExitRule):
    """KL(p_{t+1} ‖ p_t) of successive predictions. It needs the vocabulary head at every step, so it saves loops, not
    time, unless a loop costs more than the head."""

    name = "kl"

    def statistic(self, model: LoopedLM, before: Tensor, after: Tensor, codas: Codas = NO_PAST) -> Tensor:
        outputs = (model.outputs(h, coda) for h, coda in zip((before, after), codas, strict=True))
        return torch.stack([self._row(model, b, a) for b, a in zip(*outputs, strict=True)])

    def _row(self, model: LoopedLM, before: Tensor, after: Tensor) -> Tensor:
        old, new = (F.log_softmax(model.head(y), dim=-1) for y in (before, after))
        return divergence(new, old)


def divergence(new: Tensor, old: Tensor) -> Tensor:
    """KL(new ‖ old) of predictions given as log-probabilities [..., V]."""
    return F.kl_div(old, new, reduction="none", log_target=True).sum(-1)


def _norm(x: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return size


def largest(per_token: Tensor) -> Tensor:
    """An example's statistic is that of its token that moved most [B]."""
    return per_token.amax(dim=1)


RULES: Registry[ExitRule] = Registry("exit rule", (UpdateNorm(), RelativeUpdate(), PredictionKL()))
