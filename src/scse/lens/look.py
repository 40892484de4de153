"""One run and one text, looked at: what the page shows, for the page and for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from scse.data import Tokenizer
from scse.errors import UserError
from scse.evaluation.perplexity import perplexity
from scse.families import FAMILIES
from scse.lens.compute import TRACED_RULES, Rows, Trace, Window, readings, trace, window
from scse.lens.pack import (
    SIGNIFICANT_BITS,
    SMALLEST_CHANCE,
    Packed,
    decoded_attention,
    pack,
    pack_attention,
    rounded,
)
from scse.model import LoopedLM

EXACT = ("nll", "kl", *TRACED_RULES)  # what decides where a text stops and what it then costs
Answer = int | str | None
Truth = Sequence[Sequence[Answer] | None]


@dataclass(frozen=True)
class Subject:
    """A model under a name. Without a tokenizer, tokens show as their numbers."""

    label: str
    model: LoopedLM
    tokenizer: Tokenizer | None = None

    def inference(self) -> AbstractContextManager[object]:
        """Within it, the model computes in the precision it was opened with."""
        return self.model.inference()

    def word(self, token: int) -> str:
        return f"#{token}" if self.tokenizer is None else self.tokenizer.decode([token])

    def words(self, tokens: Iterable[int]) -> dict[str, str]:
        return {str(token): self.word(token) for token in sorted({int(t) for t in tokens if t >= 0})}

    def encode(self, text: str | Sequence[int]) -> list[int]:
        if not isinstance(text, str):
            return [int(token) for token in text]
        if self.tokenizer is None:
            raise UserError("a bare model cannot read text; give its tokenizer too, or token ids, or a run folder")
        return self.tokenizer.encode(text)


@dataclass
class Look:
    """A subject's numbers for a window of text. `rows` grow while the readouts are computed."""

    subject: Subject
    window: Window
    traced: Trace
    truth: list[list[int | None]] | None = None
    answers_asked: bool = False  # of a problem: every position is part of it, also where nothing is asked
    rows: list[Rows] = field(default_factory=list)

    def finish(self) -> Look:
        """Compute what is missing."""
        for _ in self.parts():
            pass
        return self

    def parts(self) -> Iterator[Packed]:
        """The rows as they are computed, packed."""
        waiting = readings(self.subject.model, self.traced, self.window.targets)
        while True:
            with self.subject.inference():
                found = next(waiting, None)
            if found is None:
                return
            self.rows.append(found)
            yield self.part(found)

    @property
    def loops(self) -> int:
        return len(self.traced.outputs) - 1

    def head(self) -> Packed:
        """What is known before the readouts."""
        subject, seen = self.subject, self.window
        expected = [token for row in self.truth or [] for token in row if token is not None]
        anchor = self.traced.anchor
        return {
            "label": subject.label,
            "family": subject.model.config.family,
            "equation": FAMILIES.find(subject.model.config.family).equation,
            "loops": self.loops,
            "total": seen.total,
            "ids": seen.ids.tolist(),
            "targets": seen.targets.tolist(),
            "truth": self.truth,
            "answers_asked": self.answers_asked,
            "words": subject.words([*seen.ids.tolist(), *seen.targets.tolist(), *expected]),
            "anchor": None if anchor is None else pack(rounded(anchor, SIGNIFICANT_BITS)),
            "no_anchor": self.traced.no_anchor,
            "arrays": _packed(self.traced.arrays),
        }

    def part(self, rows: Rows) -> Packed:
        """What some readouts say."""
        tokens = np.union1d(rows.arrays["answer"], rows.candidates)
        chances = np.where(rows.chances < SMALLEST_CHANCE, 0, rows.chances)
        return {
            "start": rows.start,
            "rows": len(rows.candidates),
            "words": self.subject.words(tokens.tolist()),
            "arrays": _packed(rows.arrays),
            "candidates": pack(rows.candidates.astype(np.uint32)),
            "chances": pack(rounded(chances, SIGNIFICANT_BITS)),
        }

    def attention(self) -> Packed | None:
        return pack_attention(self.traced.attention)

    def packed(self) -> Packed:
        """All of it, as the page carries it."""
        return {**self.head(), "parts": [self.part(_joined(self.rows))], "attention": self.attention()}

    def perplexities(self) -> list[float | None]:
        """Of the tokens that have a true next one, after 0, 1, …, T loops."""
        nll = _joined(self.rows).arrays["nll"][self.window.targets >= 0].astype(np.float64)
        return [perplexity(float(mean)) for mean in nll.mean(0)] if len(nll) else [None] * (self.loops + 1)

    def plain(self) -> dict[str, Any]:
        """What the page shows, as plain numbers; None where there is none."""
        rows, word = _joined(self.rows), self.subject.word
        arrays = {**self.traced.arrays, **rows.arrays}
        answers = arrays.pop("answer")
        anchor = self.traced.anchor
        if anchor is not None:
            arrays["relative_deviation"] = arrays["deviation"] / anchor[:, None]
        return {
            "run": self.subject.label,
            "family": self.subject.model.config.family,
            "loops": self.loops,
            "tokens": [word(int(token)) for token in self.window.ids],
            "next": [word(int(token)) if token >= 0 else None for token in self.window.targets],
            "all_tokens": self.window.total,
            "perplexity": [value if value and np.isfinite(value) else None for value in self.perplexities()],
            "no_anchor": self.traced.no_anchor or None,
            "answers": [[word(int(token)) for token in row] for row in answers],
            "values": {name: _numbers(values) for name, values in sorted(arrays.items())},
            "top": [
                {"tokens": [word(int(token)) for token in tokens], "probabilities": _numbers(chances)}
                for tokens, chances in zip(rows.candidates, rows.chances, strict=True)
            ],
            "attention": {
                str(loop): [_numbers(head) for head in weights]
                for loop, weights in decoded_attention(self.attention()).items()
            },
            "truth": self.truth and [[t if t is None else word(t) for t in row] for row in self.truth],
        }


def look(
    subject: Subject,
    text: str | Sequence[int],
    loops: int,
    longest: int,
    truth: Truth | None = None,
    targets: Sequence[int] | None = None,
) -> Look:
    """Unroll a subject's model over a text; the readouts are left to `finish` or `parts`."""
    seen = window(subject.encode(text), longest, targets)
    answers = None if truth is None else _checked_truth(subject, truth, len(seen.ids), loops)
    with subject.inference():
        return Look(subject, seen, trace(subject.model, seen.ids, loops), answers, targets is not None)


def same_rows(subjects: Sequence[Subject]) -> None:
    """Runs can stand side by side only where they cut a text into the same tokens."""
    for one, other in pairwise(subjects):
        if one.tokenizer is not None and other.tokenizer is not None and one.tokenizer.digest != other.tokenizer.digest:
            names = f"{one.tokenizer.name} and {other.tokenizer.name}"
            cut = "differently" if one.tokenizer.name != other.tokenizer.name else "with other vocabularies"
            raise UserError(
                f"'{one.label}' and '{other.label}' cut text {cut} ({names}), so their rows cannot stand side by "
                "side; make a page for each"
            )


def _checked_truth(subject: Subject, truth: Truth, rows: int, loops: int) -> list[list[int | None]]:
    """The expected answers as ids, one list for each token, at most one answer for each column."""
    if len(truth) > rows:
        raise UserError(f"the true path has {len(truth)} rows for {rows} tokens; give at most one for each token")
    found = []
    for row in truth:
        if row is not None and len(row) > loops + 1:
            raise UserError(
                f"the true path has {len(row)} answers in a row for {loops} loops; give at most {loops + 1}"
            )
        found.append([_token(subject, answer) for answer in row or []])
    return found + [[] for _ in range(rows - len(found))]


def _token(subject: Subject, answer: Answer) -> int | None:
    if answer is None or isinstance(answer, int):
        return answer
    ids = subject.encode(answer)
    if len(ids) != 1:
        raise UserError(f"'{answer}' in the true path is {len(ids)} tokens; an answer is one token")
    return ids[0]


def _joined(rows: Sequence[Rows]) -> Rows:
    def together(pick: Callable[[Rows], np.ndarray]) -> np.ndarray:
        return np.concatenate([pick(part) for part in rows])

    arrays = {name: np.concatenate([part.arrays[name] for part in rows]) for name in rows[0].arrays}
    return Rows(0, arrays, together(lambda part: part.candidates), together(lambda part: part.chances))


def _packed(arrays: dict[str, np.ndarray]) -> Packed:
    return {name: pack(_storable(name, values)) for name, values in sorted(arrays.items())}


def _storable(name: str, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "i":
        return values.astype(np.uint32)
    return values if name in EXACT else rounded(values, SIGNIFICANT_BITS)


def _numbers(values: np.ndarray) -> Any:
    """Nested lists with six significant digits."""
    if values.ndim:
        return [_numbers(row) for row in values]
    return float(f"{values:.6g}") if np.isfinite(values) else None
