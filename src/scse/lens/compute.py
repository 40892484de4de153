"""What every loop does to every token, as numbers: one unroll, then the readout of each position at each loop.

Shapes: T loops, L positions, d width, V vocabulary, A applications of attention in a loop, H heads. Arrays are [L,
T+1]: column t is the state after t loops, and what has no value at t = 0 is not-a-number there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
import torch
from torch import Tensor, nn

from scse.errors import UserError
from scse.evaluation.rules import RULES, divergence
from scse.model import LoopedLM, State, evaluating
from scse.nn.attention import CausalSelfAttention

CANDIDATES = 10
LOGITS_AT_ONCE = 8_000_000  # so that the readout stays within tens of megabytes
TRACED_RULES = ("update", "relative")  # those whose statistic needs no readout
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Window:
    """The tokens that are shown and the true next token of each, -1 where the text ends; `total` counts all tokens.

    Of a problem, the targets are its answers, -1 where nothing is asked.
    """

    ids: np.ndarray
    targets: np.ndarray
    total: int

    @property
    def scored(self) -> int:
        """How many have a true next token."""
        return int((self.targets >= 0).sum())


def window(ids: Sequence[int], longest: int, answers: Sequence[int] | None = None) -> Window:
    """The first `longest` tokens, or all: cut as an evaluation cuts its first window, and the last token kept even if
    nothing is known to follow it. `answers` stand in for what follows."""
    if not len(ids):
        raise UserError("there is no text to look at; give some with --text or --file")
    every = np.asarray(ids, dtype=np.int64)
    shown = every[:longest]
    if answers is not None:
        return Window(shown, np.asarray(answers, dtype=np.int64)[: len(shown)], len(every))
    following = every[1 : len(shown) + 1]
    targets = np.full(len(shown), -1, dtype=np.int64)
    targets[: len(following)] = following
    return Window(shown, targets, len(every))


@dataclass(frozen=True)
class Trace:
    """One unroll: what the head takes of h_t [T+1, L, d], what needs no readout, and attention, where there is any.

    `arrays` holds the statistics of `TRACED_RULES`, 'state' ‖h_t‖ and, where there is an anchor, 'deviation' ‖Δ_t‖;
    `anchor` is ‖h*‖ [L], or None with the reason.
    """

    outputs: Tensor
    arrays: Arrays
    anchor: np.ndarray | None
    no_anchor: str
    attention: list[Tensor | None]


@dataclass(frozen=True)
class Rows:
    """What the readouts of positions `start` … say: arrays, and the ten likeliest tokens over all loops.

    'nll' of the true next token, 'answer' the likeliest, 'entropy', 'kl_last' KL(p_T ‖ p_t), 'final' the probability of
    the last loop's answer, 'kl' KL(p_t ‖ p_{t−1}). `candidates` [n, 10] with their `chances` [n, 10, T+1].
    """

    start: int
    arrays: Arrays
    candidates: np.ndarray
    chances: np.ndarray


@torch.no_grad()
def trace(model: LoopedLM, ids: np.ndarray, loops: int) -> Trace:
    """Unroll a text of L tokens for `loops` loops."""
    if loops < 1:
        raise UserError(f"loops must be at least 1, got {loops}")
    states: list[Tensor] = []
    outputs: list[Tensor] = []
    norms: dict[str, list[Tensor]] = {name: [] for name in (*TRACED_RULES, "state", "deviation")}
    anchor, reason = None, ""
    attention: list[Tensor | None] = [None]
    (given,) = model.place(torch.from_numpy(ids)[None])
    with evaluating(model), watched_attention(model) as seen:
        for state in islice(model.unroll(given), loops + 1):
            if state.t:
                attention.append(torch.stack(seen) if seen else None)
                for name in TRACED_RULES:
                    norms[name].append(RULES.find(name).statistic(model, states[-1][None], state.bare)[0])
            states.append(state.bare[0])
            outputs.append(model.outputs(state.hidden)[0])
            norms["state"].append(states[-1].norm(dim=-1))
            if not reason:
                deviation, reason = deviation_of(state)
            if deviation is not None:
                norms["deviation"].append(deviation.norm(dim=-1))
                anchor = (states[-1] - deviation).norm(dim=-1) if anchor is None else anchor
            seen.clear()  # what a readout attends to is not the loop's
    arrays = {name: by_token(columns, loops + 1) for name, columns in norms.items() if columns}
    return Trace(torch.stack(outputs), arrays, None if anchor is None else anchor.cpu().numpy(), reason, attention)


def deviation_of(state: State) -> tuple[Tensor | None, str]:
    """Δ_t [L, d], or the reason why there is none."""
    try:
        return state.deviation[0], ""
    except UserError as error:
        return None, str(error)


def by_token(columns: list[Tensor], width: int) -> np.ndarray:
    """Columns, one a loop, as rows [L, width], with not-a-number for the first if it is missing."""
    found = torch.stack(columns, dim=1).float().cpu().numpy()
    missing = np.full((len(found), width - found.shape[1]), np.nan, dtype=np.float32)
    return np.concatenate([missing, found], axis=1)


@contextmanager
def watched_attention(model: LoopedLM) -> Iterator[list[Tensor]]:
    """Within it, the list holds the weights [H, L, L] of every attention that the model applies to a text."""
    seen: list[Tensor] = []

    def look(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        assert isinstance(module, CausalSelfAttention)
        seen.append(module.weights(given[0])[0].float().cpu())

    watched = [module for module in model.modules() if isinstance(module, CausalSelfAttention)]
    handles = [module.register_forward_pre_hook(look) for module in watched]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def readings(model: LoopedLM, traced: Trace, targets: np.ndarray) -> Iterator[Rows]:
    """The readouts of all positions, a few positions at a time and all their loops together."""
    loops, length, _ = traced.outputs.shape
    step = max(1, LOGITS_AT_ONCE // (loops * model.config.shape.vocabulary))
    for start in range(0, length, step):
        yield read(model, traced.outputs[:, start : start + step], targets[start : start + step], start)


@torch.no_grad()
def read(model: LoopedLM, outputs: Tensor, targets: np.ndarray, start: int) -> Rows:
    """The readouts of some positions, outputs [T+1, n, d]."""
    with evaluating(model):
        log_p = torch.log_softmax(model.head(outputs).float(), -1)
    p = log_p.exp()
    answers = log_p.argmax(-1)
    wanted = torch.from_numpy(targets).to(outputs.device)
    nll = -log_p.gather(-1, wanted.clamp_min(0).expand(len(log_p), -1)[..., None])[..., 0]
    nll[:, wanted < 0] = torch.nan
    final = p.gather(-1, answers[-1].expand(len(log_p), -1)[..., None])[..., 0]
    candidates = p.amax(0).topk(min(CANDIDATES, p.shape[-1])).indices
    columns = {
        "nll": nll,
        "final": final,
        "entropy": -(p * log_p).sum(-1),
        "kl_last": torch.stack([divergence(log_p[-1], each) for each in log_p]).clamp_min(0),
    }
    steps = [divergence(new, old) for old, new in pairwise(log_p)]
    arrays = {name: by_token(list(value), len(log_p)) for name, value in columns.items()}
    arrays["kl"] = by_token(steps, len(log_p))
    arrays["answer"] = answers.T.cpu().numpy()
    chances = p.gather(-1, candidates.expand(len(log_p), -1, -1)).permute(1, 2, 0)
    return Rows(start, arrays, candidates.cpu().numpy(), chances.contiguous().cpu().numpy())
