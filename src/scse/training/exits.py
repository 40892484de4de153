"""An exit gate for a finished model: would one more loop have lowered the loss?

Shapes: T loops, B batch, L positions, d width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from scse.config import TrainConfig
from scse.config.use import ExitTraining
from scse.data import Corpus
from scse.errors import UserError
from scse.model import LoopedLM
from scse.progress import SILENT, Meter
from scse.recurrence.reading import MotionGate
from scse.training.batches import batch_source


@dataclass(frozen=True)
class GateScore:
    """`loss` is the weighted cross-entropy, `right` the share of the loss differences that the gate calls right.

    `always` is that share for the better of the two gates that look at nothing: always stop, never stop.
    """

    loss: float
    right: float
    always: float


def train_gate(
    model: LoopedLM, corpus: Corpus, config: TrainConfig, wanted: ExitTraining, meter: Meter = SILENT
) -> tuple[MotionGate, GateScore]:
    """A gate for a frozen model, and its score on the last tenth of the steps, before each of them was learnt from.

    With g_t = L_t − L_{t+1} what loop t + 1 took off a token's loss, it minimises Σ_t |g_t|·BCE(λ_t, [g_t ≤ 0]). At the
    minimum λ_t = E[g_t⁻] / E[|g_t|]: one half where one more loop is worth nothing on average.
    """
    if model.recurrence.core.trained_depth is not None:
        raise UserError(f"'{model.config.family}' has a fixed depth, so there is nothing to decide; choose another run")
    gate = MotionGate(model.config.shape).to(model.tokens.weight.device)
    torch.nn.init.zeros_(gate.proj.weight)
    torch.nn.init.zeros_(gate.proj.bias)
    # A source of its own with as many sequences as are wanted, from behind all that the run and its parents have read,
    # so that the text comes in another order.
    batches = batch_source(corpus, replace(config, batch=wanted.batch, micro_batches=1), wanted.seed)
    read = -(-(config.steps_before + config.steps) * config.batch // wanted.batch)
    optimiser = torch.optim.Adam(gate.parameters(), lr=wanted.lr)
    scored = max(1, wanted.steps // 10)
    scores: list[Tensor] = []
    model.eval()
    for step in range(wanted.steps):
        ids, targets = batches.batch(read + step, wanted.ceiling)
        states, gains = loop_gains(model, ids.to(model.tokens.weight.device), targets, wanted.ceiling)
        loss, score = _loss(gate, states, gains, (targets >= 0).to(gains.device))
        if step >= wanted.steps - scored:
            scores.append(score)
        for group in optimiser.param_groups:
            group["lr"] = wanted.lr * (1 - step / wanted.steps)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        meter.advance(1)
    total, right, stop, all_of_it = torch.stack(scores).sum(0).tolist()
    always = max(stop, all_of_it - stop) / max(all_of_it, 1e-30)
    return gate, GateScore(total / scored, right / max(all_of_it, 1e-30), always)


@torch.no_grad()
def loop_gains(model: LoopedLM, ids: Tensor, targets: Tensor, ceiling: int) -> tuple[list[Tensor], Tensor]:
    """The states h_0 … h_T, and g_t = L_t − L_{t+1} of every token for t = 1 … T − 1 [T − 1, B, L]"""
    states = list(islice(model.unroll(ids), ceiling + 1))
    targets = targets.to(ids.device)
    losses = torch.stack([model.token_nll(state.hidden, targets).view(targets.shape) for state in states[1:]])
    return [state.bare for state in states], losses[:-1] - losses[1:]


def _loss(gate: MotionGate, states: Sequence[Tensor], gains: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
    """The weighted cross-entropy, and its sums: itself, |g| called right, |g| where stopping was right, all |g|."""
    logits = torch.stack([gate.logit(states[t - 1], states[t]) for t in range(1, len(states) - 1)])
    weight = gains.abs() * asked
    stop = (gains <= 0).to(weight.dtype)
    loss = F.binary_cross_entropy_with_logits(logits, stop, weight, reduction="sum") / weight.sum().clamp_min(1e-30)
    right = (weight * ((logits > 0) == (stop > 0))).sum()
    return loss, torch.stack([loss.detach(), right, (weight * stop).sum(), weight.sum()])
