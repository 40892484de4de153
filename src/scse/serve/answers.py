"""What a client is sent, in OpenAI's forms, with the loops that each token took."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from scse.data import Tokenizer
from scse.serve.ask import Ask
from scse.serve.listener import News
from scse.serve.sequence import Token


@dataclass
class Choice:
    """One answer as it grows."""

    prompt: str
    scored: list[Token] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    text: str = ""
    end: str = ""
    message: str = ""

    def take(self, news: News) -> None:
        self.scored += news.scored
        self.tokens += news.tokens
        self.text += news.text
        self.end, self.message = self.end or news.end, self.message or news.message


class Answer:
    """The answer to one request, whole or in parts."""

    def __init__(self, ask: Ask, name: str, tokenizer: Tokenizer) -> None:
        self.ask, self.tokenizer = ask, tokenizer
        kind = "chat.completion" if ask.chat else "text_completion"
        self.id = f"{'chatcmpl' if ask.chat else 'cmpl'}-{secrets.token_hex(12)}"
        self.head = {"id": self.id, "created": int(time.time()), "model": name}
        self.kind, self.part_kind = kind, f"{kind}.chunk" if ask.chat else kind
        self.choices = [Choice(prompt) for prompt in ask.prompts]

    def take(self, news: News) -> None:
        self.choices[news.choice].take(news)

    @property
    def finished(self) -> bool:
        return all(choice.end for choice in self.choices)

    @property
    def failure(self) -> tuple[int, str] | None:
        """Why there is no answer: a status and a line."""
        for choice in self.choices:
            if choice.end == "failed":
                return 500, choice.message
            if choice.end == "deadline" and not choice.tokens:
                return 504, "the deadline passed before the first token; allow more time, or ask for less"
        return None

    def usage(self) -> dict[str, Any]:
        """Tokens, and the loops of the new ones."""
        loops = [token.loops for choice in self.choices for token in choice.tokens]
        return {
            "prompt_tokens": self.ask.prompt_tokens,
            "completion_tokens": len(loops),
            "total_tokens": self.ask.prompt_tokens + len(loops),
            "loops": sum(loops),
            "mean_loops": sum(loops) / len(loops) if loops else 0.0,
        }

    def whole(self) -> dict[str, Any]:
        choices = [self._whole_choice(place, choice) for place, choice in enumerate(self.choices)]
        return {**self.head, "object": self.kind, "choices": choices, "usage": self.usage()}

    def _whole_choice(self, place: int, choice: Choice) -> dict[str, Any]:
        about = {"index": place, "finish_reason": choice.end, "loops": [token.loops for token in choice.tokens]}
        if self.ask.chat:
            scores = self._chat_scores(choice.tokens) if self.ask.logprobs else None
            return {**about, "message": {"role": "assistant", "content": choice.text}, "logprobs": scores}
        tokens = [*self._prompt_tokens(place, choice), *choice.tokens] if self.ask.echo else choice.tokens
        scores = self._scores(tokens, 0) if self.ask.logprobs else None
        return {**about, "text": choice.prompt + choice.text, "logprobs": scores}

    def _prompt_tokens(self, place: int, choice: Choice) -> list[Token]:
        """Those of the prompt, the first of which nothing predicted."""
        return [Token(self.ask.wanted[place].prompt[0]), *choice.scored]

    def opening(self) -> list[dict[str, Any]]:
        """What a stream begins with."""
        if not self.ask.chat:
            return []
        delta = {"role": "assistant", "content": ""}
        return [self._part(place, {"delta": delta, "finish_reason": None}) for place in range(len(self.choices))]

    def part(self, news: News) -> list[dict[str, Any]]:
        """What a stream says about some news. An echoed prompt comes with the first of them that is new."""
        choice = self.choices[news.choice]
        first = len(choice.tokens) == len(news.tokens) and bool(news.tokens or news.end)
        if not (news.text or news.tokens or news.end):
            return []
        tokens, text = list(news.tokens), news.text
        before = len(choice.prompt) * self.ask.echo + len(choice.text) - len(news.text)
        if self.ask.echo and first:
            tokens, text, before = [*self._prompt_tokens(news.choice, choice), *tokens], choice.prompt + text, 0
        about: dict[str, Any] = {"finish_reason": news.end or None, "loops": [token.loops for token in news.tokens]}
        if self.ask.chat:
            about["delta"] = {"content": text} if text else {}
            about["logprobs"] = self._chat_scores(tokens) if self.ask.logprobs and tokens else None
        else:
            about["text"] = text
            about["logprobs"] = self._scores(tokens, before) if self.ask.logprobs and tokens else None
        return [self._part(news.choice, about)]

    def closing(self) -> list[dict[str, Any]]:
        if not self.ask.stream_usage:
            return []
        return [{**self.head, "object": self.part_kind, "choices": [], "usage": self.usage()}]

    def _part(self, place: int, about: dict[str, Any]) -> dict[str, Any]:
        return {**self.head, "object": self.part_kind, "choices": [{"index": place, **about}]}

    def _scores(self, tokens: list[Token], offset: int) -> dict[str, Any]:
        """Log-probabilities in the form of completions."""
        texts = [self.tokenizer.decode([token.id]) for token in tokens]
        offsets = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [self._top(token) for token in tokens],
            "text_offset": offsets,
        }

    def _top(self, token: Token) -> dict[str, float] | None:
        if token.logprob is None:
            return None
        found: dict[str, float] = {}
        for name, score in token.top:  # the likeliest first, and several tokens may look the same
            found.setdefault(self.tokenizer.decode([name]), score)
        return found

    def _chat_scores(self, tokens: list[Token]) -> dict[str, Any]:
        """Log-probabilities in the form of chats."""
        content = [
            {
                **self._named(token.id, token.logprob),
                "top_logprobs": [self._named(name, score) for name, score in token.top],
            }
            for token in tokens
        ]
        return {"content": content, "refusal": None}

    def _named(self, token: int, logprob: float | None) -> dict[str, Any]:
        text = self.tokenizer.decode([token])
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
