"""What a corpus is to those who read it: a tokenizer, and splits of tokens. No torch here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from scse.data.sequences import Readable
from scse.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenSplit:
    """The tokens of one split, read-only: running text mapped from disk, or sequences. `digest` is a hash of them."""

    name: str
    tokens: Readable
    digest: str


class Corpus(ABC):
    """A corpus whose splits are made when they are first asked for."""

    def __init__(self, name: str, tokenizer: Tokenizer) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self._opened: dict[str, TokenSplit] = {}

    @property
    @abstractmethod
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""

    @abstractmethod
    def _canonical(self, name: str) -> str:
        """The split that a name stands for; an error where there is none."""

    @abstractmethod
    def _open(self, name: str) -> TokenSplit:
        """A split by its canonical name."""

    def split(self, name: str) -> TokenSplit:
        name = self._canonical(name)
        if name not in self._opened:
            self._opened[name] = self._open(name)
        return self._opened[name]
