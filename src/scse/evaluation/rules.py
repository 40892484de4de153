"""When an example may stop: exit rules, each a small object with one statistic.

An example or a token stops after the first step whose statistic is at most a threshold. Shapes: B batch, L positions,
d width.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from scse.config.use import BATCH
from scse.errors import UserError
from scse.model import LoopedLM
from scse.nn.block import Pasts
from scse.recurrence.reading import ExitGate
from scse.registry import Registry

Codas = tuple[Pasts | None, Pasts | None]
NO_PAST: Codas = (None, None)


class ExitRule(ABC):
    """One statistic per token. Yours is registered with `scse.register(MyRule())` and chosen by its name."""

    name: ClassVar[str]
    table: ClassVar[str] = "scse.evaluation.rules:RULES"

    @abstractmethod
    def statistic(self, model: LoopedLM, before: Tensor, after: Tensor, codas: Codas = NO_PAST) -> Tensor:
        """Of each token after the step from h_t to h_{t+1} [B, L].

        Under a cache, `codas` are what a coda has seen of earlier positions after t and after t + 1 loops.
        """

    def of_examples(self, per_token: Tensor) -> Tensor:
        """The statistic of whole examples [B]: that of the token that moved most, as in the paper."""
        return per_token.amax(dim=1)

    def check(self, model: LoopedLM) -> None:
        """Raise a `UserError` where the model lacks what the rule looks at."""
        return

    def describe(self, model: LoopedLM) -> dict[str, str]:
        """What a record must say besides the rule's name, because numbers depend on it."""
        return {}


@dataclass(frozen=True)
class Stopping:
    """How examples stop early: by which rule, after how many loops at the latest.

    `windows` of the text are read (None: all of them), `batch` at a time.
    """

    rule: ExitRule
    ceiling: int
    batch: int = BATCH
    windows: int | None = None


class MeanRule(ExitRule):
    """A rule whose statistic is a probability, which an example has on average over its tokens."""

    def of_examples(self, per_token: Tensor) -> Tensor:
        return per_token.mean(dim=1)


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
        return torch.stack([prediction_change(model, b, a) for b, a in zip(*outputs, strict=True)])


class Margin(MeanRule):
    """1 − (p⁽¹⁾ − p⁽²⁾) of h_{t+1}, with p⁽¹⁾ and p⁽²⁾ its two likeliest next tokens: confidence of the prediction."""

    name = "margin"

    def statistic(self, model: LoopedLM, before: Tensor, after: Tensor, codas: Codas = NO_PAST) -> Tensor:
        outputs = model.outputs(after, codas[1])
        return torch.stack([self._row(model, row) for row in outputs])

    @staticmethod
    def _row(model: LoopedLM, outputs: Tensor) -> Tensor:
        first, second = F.softmax(model.head(outputs), dim=-1).topk(2, dim=-1).values.unbind(-1)
        return 1 - (first - second)


class Lookahead(ExitRule):
    """KL(p̃_{t+2} ‖ p_{t+1}) with p̃_{t+2} the prediction of y_{t+1} + (y_{t+1} − y_t), y_t what the head takes of h_t:
    what one more loop would change in the prediction if it moved that as the last one did. It needs the head twice."""

    name = "lookahead"

    def statistic(self, model: LoopedLM, before: Tensor, after: Tensor, codas: Codas = NO_PAST) -> Tensor:
        outputs = (model.outputs(h, coda) for h, coda in zip((before, after), codas, strict=True))
        return torch.stack([prediction_change(model, a, 2 * a - b) for b, a in zip(*outputs, strict=True)])


class Gate(MeanRule):
    """1 − λ_{t+1}, the model's exit gate: trained with it (objective 'expected'), or afterwards (`scse train-exit`)."""

    name = "gate"

    def statistic(self, model: LoopedLM, before: Tensor, after: Tensor, codas: Codas = NO_PAST) -> Tensor:
        found: Tensor = 1 - self._gate(model)(before, after)
        return found

    def check(self, model: LoopedLM) -> None:
        self._gate(model)

    def describe(self, model: LoopedLM) -> dict[str, str]:
        gate = self._gate(model)
        content = b"".join(tensor.detach().cpu().numpy().tobytes() for tensor in gate.state_dict().values())
        return {"gate": hashlib.sha256(content).hexdigest()[:16]}

    @staticmethod
    def _gate(model: LoopedLM) -> ExitGate:
        if model.recurrence.exit is None:
            raise UserError("this model has no exit gate; train one with 'scse train-exit RUN', or use another --rule")
        return model.recurrence.exit


def prediction_change(model: LoopedLM, before: Tensor, after: Tensor) -> Tensor:
    """KL(after ‖ before) of the predictions of two outputs [L, d], for each position."""
    old, new = (F.log_softmax(model.head(y), dim=-1) for y in (before, after))
    return divergence(new, old)


def divergence(new: Tensor, old: Tensor) -> Tensor:
    """KL(new ‖ old) of predictions given as log-probabilities [..., V]."""
    return F.kl_div(old, new, reduction="none", log_target=True).sum(-1)


def _norm(x: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return size


RULES: Registry[ExitRule] = Registry(
    "exit rule", (UpdateNorm(), RelativeUpdate(), PredictionKL(), Margin(), Lookahead(), Gate())
)
