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
from scse.runs.partial import Found, Partial, over_batches


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
    model: LoopedLM,
    examples: Sequence[Completion],
    depths: Sequence[int],
    batch: int,
    meter: Meter = SILENT,
    partial: Partial | None = None,
) -> list[CompletionResult]:
    """One result per depth, all depths from one unroll; texts longer than the model's context keep their end.

    With a `partial`, one that was ended goes on where it was.
    """
    if not examples:
        raise UserError("there are no examples to complete")
    # Texts of similar length share a batch; on the right, padding is invisible to a causal model.
    ordered = sorted(examples, key=lambda example: len(example.tokens))
    batches = (ordered[first : first + batch] for first in range(0, len(ordered), batch))
    parts = over_batches(
        batches,
        lambda rows: _completed(model, rows, depths),
        partial,
        lambda part: meter.advance(part["examples"]),
    )
    if partial:
        partial.forget()
    count = sum(part["tokens"] for part in parts)

    def result(place: int, depth: int) -> CompletionResult:
        nll, right, exact = (sum(part[name][place] for part in parts) for name in ("nll", "right", "exact"))
        shares = right / count, exact / len(examples)
        return CompletionResult(depth, perplexity(nll / count), perplexity(nll / len(examples)), *shares, len(examples))

    return [result(place, depth) for place, depth in enumerate(depths)]


def _completed(model: LoopedLM, rows: Sequence[Completion], depths: Sequence[int]) -> Found:
    """Of a batch, at each depth: Σ nll of the answers, how many tokens are right, and how many whole answers."""
    ids, *where, targets = model.place(*_pad(rows, model.config.shape.context))
    answered: dict[int, tuple[Tensor, Tensor]] = {}
    for state in islice(model.unroll(ids), max(depths) + 1):
        if state.t in depths:
            log_p = torch.log_softmax(model.head(model.outputs(state.hidden)[tuple(where)]), dim=-1)
            total = log_p.gather(1, targets[:, None]).sum(dtype=wide(model.device))
            answered[state.t] = total, log_p.argmax(-1) == targets
    hits = [answered[depth][1].cpu() for depth in depths]
    return {
        "examples": len(rows),
        "tokens": len(targets),
        "nll": [-answered[depth][0].item() for depth in depths],
        "right": [int(found.sum()) for found in hits],
        "exact": [sum(bool(one.all()) for one in found.split([row.answer for row in rows])) for found in hits],
    }


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
