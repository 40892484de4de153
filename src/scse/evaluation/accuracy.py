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
from scse.model import LoopedLM, evaluating
from scse.progress import progress
from scse.runs.partial import Found, Partial, over_batches

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
    model: LoopedLM,
    data: Sequences,
    depths: Sequence[int],
    batch: int,
    limit: int | None,
    show: bool = False,
    partial: Partial | None = None,
) -> dict[int, Right]:
    """By depth, whether the likeliest token is the target [N, L]; True where nothing is asked.

    With a `partial`, one that was ended goes on where it was.
    """
    context = model.config.shape.context
    total = window_count(data, context, limit)
    with evaluating(model), progress("answering", total, "examples", enabled=show) as meter:
        found = over_batches(
            windows(data, context, batch, limit),
            lambda texts: _answered(model, *texts, depths),
            partial,
            lambda part: meter.advance(part["examples"]),
        )
    if partial:
        partial.forget()
    asked = data.targets[: sum(part["examples"] for part in found)] != UNCOUNTED
    right = {depth: np.ones_like(asked) for depth in depths}
    for place, depth in enumerate(depths):
        right[depth][asked] = [answer == "1" for part in found for answer in part["right"][place]]
    return right


def _answered(model: LoopedLM, ids: Tensor, targets: Tensor, depths: Sequence[int]) -> Found:
    """Of a batch, at each depth: a 1 for every answer that is right and a 0 for every other, in order."""
    asked = targets != UNCOUNTED
    given, places, wanted = model.place(ids, asked.flatten().nonzero()[:, 0], targets[asked])
    answered: dict[int, Tensor] = {}
    for state in islice(model.unroll(given), max(depths) + 1):
        if state.t in depths:
            outputs = model.outputs(state.hidden).flatten(0, 1)[places]
            answered[state.t] = model.head(outputs).argmax(-1) == wanted
    same = torch.stack([answered[depth] for depth in depths]).int().tolist()  # fetched together
    return {"examples": len(ids), "right": ["".join(map(str, row)) for row in same]}


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
