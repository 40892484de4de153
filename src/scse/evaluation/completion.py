"""Last-word completion (LAMBADA): how well the answer's tokens are predicted, teacher-forced, at each depth.

Shapes: B batch, L positions, K answer tokens in a batch, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from scse.data import Tokenizer
from scse.devices import wide
from scse.errors import UserError
from scse.evaluation.perplexity import perplexity
from scse.model import LoopedLM
from scse.progress import SILENT, Meter


@dataclass(frozen=True)
class Completion:
    """A text as tokens; the last `answer` of them are to be predicted."""

    tokens: list[int]
    answer: int


@dataclass(frozen=True)
class CompletionResult:
    """Perplexity and accuracy over the answers' tokens; `exact` is the share of answers with every token right.

    `word_ppl` is the perplexity per answer, whatever its number of tokens: what lm-eval prints for LAMBADA.
    """

    depth: int
    target_ppl: float
    word_ppl: float
    target_accuracy: float
    exact_accuracy: float
    examples: int


def last_word_completions(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[Completion]:
    """Each text with its last word as the answer, the space before it included."""
    for number, text in enumerate(texts, start=1):
        context, space, word = text.rstrip().rpartition(" ")
        if not (context and space and word):
            raise UserError(f"example {number} has no last word to predict: {text[:40]!r}")
        before, answer = tokenizer.encode(context), tokenizer.encode(space + word)
        yield Completion(before + answer, len(answer))


@torch.no_grad()
def complete(
    model: LoopedLM, examples: Sequence[Completion], depths: Sequence[int], batch: int, meter: Meter = SILENT
) -> list[CompletionResult]:
    """One result per depth, all depths from one unroll; texts longer than the model's context keep their end."""
    if not examples:
        raise UserError("there are no examples to complete")
    nll, right, exact = (dict.fromkeys(depths, 0.0) for _ in range(3))
    count = 0
    # Texts of similar length share a batch; on the right, padding is invisible to a causal model.
    ordered = sorted(examples, key=lambda example: len(example.tokens))
    for first in range(0, len(ordered), batch):
        rows = ordered[first : first + batch]
        ids, *where, targets = model.place(*_pad(rows, model.config.shape.context))
        answered: dict[int, tuple[Tensor, Tensor]] = {}
        for state in islice(model.unroll(ids), max(depths) + 1):
            if state.t in nll:
                log_p = torch.log_softmax(model.head(model.outputs(state.hidden)[tuple(where)]), dim=-1)
                total = log_p.gather(1, targets[:, None]).sum(dtype=wide(model.device))
                answered[state.t] = total, log_p.argmax(-1) == targets
        for depth, (total, found) in answered.items():
            hits = found.cpu()
            nll[depth] -= total.item()
            right[depth] += int(hits.sum())
            exact[depth] += sum(bool(part.all()) for part in hits.split([row.answer for row in rows]))
        count += len(targets)
        meter.advance(len(rows))
    return [
        CompletionResult(
            depth,
            perplexity(nll[depth] / count),
            perplexity(nll[depth] / len(examples)),
            right[depth] / count,
            exact[depth] / len(examples),
            len(examples),
        )
        for depth in depths
    ]


def _pad(rows: Sequence[Completion], context: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs [B, L] padded on the right, the rows and the columns that predict answer tokens, and the tokens [K]."""
    cut = [row.tokens[-(context + 1) :] for row in rows]
    ids = torch.zeros(len(rows), max(len(tokens) for tokens in cut) - 1, dtype=torch.long)
    row_index: list[int] = []
    columns: list[int] = []
    targets: list[int] = []
    for number, (row, tokens) in enumerate(zip(rows, cut, strict=True)):
        if row.answer >= len(tokens):
            raise UserError(f"an answer of {row.answer} tokens leaves no room for its context of {context} positions")
        ids[number, : len(tokens) - 1] = torch.tensor(tokens[:-1])
        last = len(tokens) - 1
        row_index += [number] * row.answer
        columns += range(last - row.answer, last)
        targets += tokens[-row.answer :]
    return ids, torch.tensor(row_index), torch.tensor(columns), torch.tensor(targets)
