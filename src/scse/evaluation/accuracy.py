"""Accuracy of answers by loop depth, all from one unroll.

Shapes: N examples, L positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scse.data import UNCOUNTED, Sequences
from scse.evaluation.perplexity import window_count, windows
from scse.model import LoopedLM
from scse.progress import progress

Right = NDArray[np.bool_]


@dataclass(frozen=True)
class Accuracy:
    """The share of right answers, and of examples whose every answer is right, at one depth.

    With a `difficulty` the answers are those of that difficulty, and the examples those that have one.
    """

    depth: int
    difficulty: int | str
    accuracy: float
    exact: float
    examples: int
    answers: int


@torch.no_grad()
def right_answers(
    model: LoopedLM, data: Sequences, depths: Sequence[int], batch: int, limit: int | None, show: bool = False
) -> dict[int, Right]:
    """By depth, whether the likeliest token is the target [N, L]; True where nothing is asked."""
    found: dict[int, list[Right]] = {depth: [] for depth in depths}
    context = model.config.shape.context
    was_training = model.training
    model.eval()
    try:
        with progress("answering", window_count(data, context, limit), "examples", enabled=show) as meter:
            for ids, targets in windows(data, context, batch, limit):
                asked = targets != UNCOUNTED
                given, places, wanted = model.place(ids, asked.flatten().nonzero()[:, 0], targets[asked])
                answered: dict[int, Tensor] = {}
                for state in islice(model.unroll(given), max(depths) + 1):
                    if state.t in found:
                        outputs = model.outputs(state.hidden).flatten(0, 1)[places]
                        answered[state.t] = model.head(outputs).argmax(-1) == wanted
                for depth, same in answered.items():
                    right = torch.ones_like(asked)
                    right[asked] = same.cpu()
                    found[depth].append(right.numpy())
                meter.advance(len(ids))
    finally:
        model.train(was_training)
    return {depth: np.concatenate(parts) for depth, parts in found.items()}


@torch.no_grad()
def settling(
    model: LoopedLM, data: Sequences, ceiling: int, batch: int, limit: int | None
) -> tuple[NDArray[np.int64], Right]:
    """Exit per answer without a threshold: the first loop that leaves the likeliest token as it was [N, L].

    Also whether the answer is right there. The ceiling ends those that never settle.
    """
    taken_all, right_all = [], []
    for inputs, wanted in windows(data, model.config.shape.context, batch, limit):
        ids, targets = model.place(inputs, wanted)
        taken = torch.zeros_like(targets)
        final, before = torch.zeros_like(targets), torch.full_like(targets, UNCOUNTED)
        for state in islice(model.unroll(ids), ceiling + 1):
            answers = model.readout(state.hidden).argmax(-1)
            stops = (taken == 0) & ((answers == before) | (state.t == ceiling)) & (state.t > 0)
            taken, final = torch.where(stops, state.t, taken), torch.where(stops, answers, final)
            before = answers
            if (taken > 0).all():
                break
        taken_all.append(taken.cpu().numpy())
        right_all.append((final == targets).cpu().numpy())
    return np.concatenate(taken_all), np.concatenate(right_all)


def score(data: Sequences, right: Right, depth: int, difficulty: int | None) -> Accuracy | None:
    """The accuracy of answers of one difficulty, None for all; None where no example has such an answer."""
    count = len(right)
    asked = data.targets[:count] != UNCOUNTED
    chosen = asked if difficulty is None else asked & (data.difficulty[:count] == difficulty)
    having = chosen.any(axis=1)
    if not having.any():
        return None
    return Accuracy(
        depth,
        "all" if difficulty is None else difficulty,
        float(right[chosen].mean()),
        float(right[having].all(axis=1).mean()),
        int(having.sum()),
        int(chosen.sum()),
    )
