"""Generation from text to text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from scse.data import Tokenizer
from scse.generation.generate import Generation, stream
from scse.model import LoopedLM

LONGEST_CHARACTER = 4  # bytes, hence tokens


@dataclass
class Continuation:
    """What a model added to a prompt: ids, the text that each completed, and the loops behind each."""

    tokenizer: Tokenizer
    ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    loops: list[int] = field(default_factory=list)
    _waiting: list[int] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def mean_loops(self) -> float:
        return sum(self.loops) / max(1, len(self.loops))

    def add(self, token: int, loops: int) -> None:
        """Bytes that do not yet make a character wait for the next token."""
        self.ids.append(token)
        self.loops.append(loops)
        self._waiting.append(token)
        text = self.tokenizer.decode(self._waiting)
        complete = not text.endswith("\ufffd") or len(self._waiting) >= LONGEST_CHARACTER
        self.pieces.append(text if complete else "")
        if complete:
            self._waiting = []

    def finish(self) -> None:
        """Show what still waits, be it a whole character or not."""
        self.pieces[-1] += self.tokenizer.decode(self._waiting)
        self._waiting = []


def continue_text(
    model: LoopedLM, tokenizer: Tokenizer, prompt: str, wanted: Generation, seeds: Sequence[int] = (0,)
) -> Iterator[list[Continuation]]:
    """The continuations of a prompt, one per seed, each time they have grown by a token; the last time finished.

    The end of a text, as the tokenizer marks it, ends a continuation.
    """
    ids = tokenizer.encode(prompt)
    found = [Continuation(tokenizer) for _ in seeds]
    for new in stream(model, [ids] * len(seeds), wanted, seeds):
        for token in new:
            if token.id != wanted.stop:
                found[token.row].add(token.id, token.loops)
        yield found
    for continuation in found:
        if continuation.ids:
            continuation.finish()
    yield found
