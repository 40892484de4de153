"""A request's body, understood: every field checked, in one line where it is wrong."""

from __future__ import annotations

import json
import math
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scse.config.use import RULE
from scse.data import Tokenizer
from scse.errors import unknown_name
from scse.evaluation.rules import RULES
from scse.generation.sampling import Sampling
from scse.serve.limits import Refused
from scse.serve.sequence import Wanted
from scse.serve.served import Chat, Served

MOST_CHOICES = 128
MOST_STOPS = 16
MOST_ALTERNATIVES = 20
MOST_TOKENS = 1 << 20
NONSENSE = 1_000_000
LARGEST = sys.float_info.max
DEFAULT_TOKENS = 16  # of a completion, as OpenAI has it

SHARED = {
    "model", "stream", "stream_options", "temperature", "top_p", "n", "max_tokens", "stop", "seed", "logprobs",
    "loops", "exit_rule", "exit_threshold", "budget", "deadline",
}  # fmt: skip
# What clients send without meaning anything by it: taken where it asks for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,), "frequency_penalty": (0,), "logit_bias": ({},), "suffix": ("",), "best_of": (1,),
    "tools": ([],), "tool_choice": ("none", "auto"), "response_format": ({"type": "text"},), "functions": ([],),
    "parallel_tool_calls": (True, False), "modalities": (["text"],), "service_tier": ("auto", "default"),
}  # fmt: skip
IGNORED = {"user", "metadata", "store", "safety_identifier", "prompt_cache_key"}


@dataclass(frozen=True)
class Defaults:
    """What a request gets that does not say."""

    loops: int
    rule: str = RULE
    threshold: float | None = None
    deadline: float | None = None


@dataclass(frozen=True)
class Ask:
    """`wanted` are the sequences, the choices of the first prompt first; `prompts` the texts behind them."""

    wanted: list[Wanted]
    prompts: list[str]
    stream: bool
    stream_usage: bool
    echo: bool
    logprobs: bool
    stops: tuple[str, ...]
    deadline: float | None
    chat: bool
    prompt_tokens: int = field(default=0)


def parse(raw: bytes) -> dict[str, Any]:
    """A JSON object of finite numbers and whole characters."""
    try:
        body = json.loads(raw, parse_constant=_no_number)
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Refused("the body has half a character (a lone surrogate); send whole ones") from None
    except (ValueError, RecursionError):
        raise Refused("the body is not JSON") from None
    if not isinstance(body, dict):
        raise Refused("the body must be a JSON object")
    return {name: value for name, value in body.items() if value is not None}


def _no_number(name: str) -> None:
    raise ValueError(name)


class Reader:
    """Turns bodies into what the engine takes."""

    def __init__(self, served: Served, defaults: Defaults, context: int) -> None:
        self.served, self.defaults, self.context = served, defaults, context
        self.tokenizer: Tokenizer = served.tokenizer
        self.chat_template = Chat(served)

    def completion(self, body: Mapping[str, Any]) -> Ask:
        _known(body, SHARED | {"prompt", "echo"})
        prompts = self._prompts(body.get("prompt"))
        alternatives = _whole(body, "logprobs", 0, MOST_ALTERNATIVES)
        echo = _flag(body, "echo")
        count = _whole(body, "max_tokens", 0, MOST_TOKENS, DEFAULT_TOKENS)
        assert count is not None
        if count == 0 and not echo:
            raise Refused("max_tokens is 0, so there is nothing to answer; set echo, or ask for a token")
        return self._ask(body, prompts, [count] * len(prompts), alternatives, echo, chat=False)

    def chat(self, body: Mapping[str, Any]) -> Ask:
        _known(body, (SHARED | {"messages", "top_logprobs", "max_completion_tokens"}))
        ids = self.chat_template.encode(_messages(body.get("messages")))
        alternatives = _whole(body, "top_logprobs", 0, MOST_ALTERNATIVES)
        if alternatives is not None and not _flag(body, "logprobs"):
            raise Refused("top_logprobs needs logprobs to be true")
        if _flag(body, "logprobs"):
            alternatives = alternatives or 0
        count = _whole(body, "max_completion_tokens", 1, MOST_TOKENS) or _whole(body, "max_tokens", 1, MOST_TOKENS)
        count = count or max(1, self.context - len(ids) + 1)
        return self._ask(body, [ids], [count], alternatives, False, chat=True)

    def _ask(
        self,
        body: Mapping[str, Any],
        prompts: list[list[int]],
        counts: list[int],
        alternatives: int | None,
        echo: bool,
        chat: bool,
    ) -> Ask:
        self._check_model(body)
        choices = _whole(body, "n", 1, MOST_CHOICES, 1) or 1
        if choices * len(prompts) > MOST_CHOICES:
            raise Refused(f"{choices * len(prompts)} answers are more than {MOST_CHOICES}; send several requests")
        seed = _whole(body, "seed", -(2**63), 2**63 - 1)
        seed = secrets.randbits(31) if seed is None else seed % 2**62
        sampling = Sampling(_number(body, "temperature", 0, 100, 1.0), _number(body, "top_p", 1e-9, 1, 1.0))
        shared = {
            **self._depth(body), "sampling": sampling, "stop": self.tokenizer.eot_id, "logprobs": alternatives,
            "scores": echo and alternatives is not None,
        }  # fmt: skip
        wanted = [
            Wanted(tuple(ids), count, seed=seed + choice, **shared)
            for ids, count in zip(prompts, counts, strict=True)
            for choice in range(choices)
        ]
        options = body.get("stream_options", {})
        if not isinstance(options, dict):
            raise Refused("stream_options must be an object")
        return Ask(
            wanted,
            [self.tokenizer.decode(ids) if echo else "" for ids in prompts for _ in range(choices)],
            _flag(body, "stream"),
            bool(options.get("include_usage")),
            echo,
            alternatives is not None,
            _stops(body) + (self.chat_template.stops if chat else ()),
            _number(body, "deadline", 0, 1e6, self.defaults.deadline),
            chat,
            sum(map(len, prompts)),
        )

    def _depth(self, body: Mapping[str, Any]) -> dict[str, Any]:
        threshold = _number(body, "exit_threshold", 0, math.inf, self.defaults.threshold)
        rule = body.get("exit_rule", self.defaults.rule)
        if not isinstance(rule, str):
            raise Refused("exit_rule must be a name")
        if "exit_rule" in body and threshold is None:
            raise Refused("exit_rule needs an exit_threshold")
        found = RULES.find(rule)
        if threshold is not None:
            found.check(self.served.model)
        return {
            "loops": _whole(body, "loops", 1, MOST_TOKENS, self.defaults.loops),
            "threshold": threshold,
            "rule": found,
            "budget": _number(body, "budget", 1, 1e6, None),
        }

    def _check_model(self, body: Mapping[str, Any]) -> None:
        name = body.get("model", self.served.name)
        if name != self.served.name:
            raise Refused(str(unknown_name("model", name, [self.served.name])), 404)

    def _prompts(self, given: Any) -> list[list[int]]:
        """A text, several, the tokens of one, or those of several."""
        if isinstance(given, str):
            return [self.tokenizer.encode(given)]
        if isinstance(given, list) and given and len(given) <= MOST_TOKENS:
            if all(isinstance(text, str) for text in given):
                return self.tokenizer.encode_batch(given)
            if all(map(_is_whole, given)):
                return self._within_vocabulary([given])
            if all(isinstance(ids, list) and ids and all(map(_is_whole, ids)) for ids in given):
                return self._within_vocabulary(given)
        raise Refused("prompt must be a text, a list of texts, or tokens as whole numbers")

    def _within_vocabulary(self, prompts: list[list[int]]) -> list[list[int]]:
        size = self.served.model.config.shape.vocabulary
        for token in (token for ids in prompts for token in ids):
            if not 0 <= token < size:
                raise Refused(f"token {str(token)[:20]} of the prompt is outside the vocabulary of {size}")
        return prompts


def _known(body: Mapping[str, Any], names: set[str]) -> None:
    for name, value in body.items():
        if name in names or name in IGNORED:
            continue
        if name not in NEUTRAL:
            raise Refused(str(unknown_name("field", name, sorted(names))))
        if value not in NEUTRAL[name]:
            raise Refused(f"{name} is not supported; leave it out")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise Refused(f"{name} must be true or false")
    return value


def _whole(body: Mapping[str, Any], name: str, low: int, high: int, default: int | None = None) -> int | None:
    value: int | None = body.get(name, default)
    if value is not None and not _is_whole(value):
        raise Refused(f"{name} must be a whole number, got {json.dumps(value)[:30]}")
    if value is not None and not low <= value <= high:
        raise Refused(f"{name} must be a whole number {_within(low, high, value)}")
    return value


def _number(body: Mapping[str, Any], name: str, low: float, high: float, default: Any) -> Any:
    value = body.get(name, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= min(high, LARGEST):
        raise Refused(f"{name} must be a number {_within(low, high, value)}")
    return float(value)


def _within(low: float, high: float, given: object) -> str:
    """A range in words; a bound that only keeps nonsense out is named to those who send it."""
    exceeded = isinstance(given, int | float) and given > high
    return f"between {low:,} and {high:,}" if high < NONSENSE or exceeded else f"of at least {low:,}"


def _stops(body: Mapping[str, Any]) -> tuple[str, ...]:
    given = body.get("stop", [])
    stops = [given] if isinstance(given, str) else given
    if not isinstance(stops, list) or len(stops) > MOST_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise Refused(f"stop must be a text or a list of at most {MOST_STOPS}, none of them empty")
    return tuple(stops)


def _messages(given: Any) -> Sequence[dict[str, str]]:
    if not isinstance(given, list) or not given:
        raise Refused("messages must be a list with at least one message")
    found = []
    for message in given:
        match message:
            case {"role": "system" | "developer" | "user" | "assistant" as role, "content": str(content)}:
                found.append({"role": role, "content": content})
            case {"role": "system" | "developer" | "user" | "assistant" as role, "content": list(parts)}:
                found.append({"role": role, "content": "".join(map(_text_part, parts))})
            case _:
                raise Refused("a message needs a role (system, developer, user or assistant) and a text as content")
    return found


def _text_part(part: Any) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
    raise Refused("a part of a message must be a text; nothing else is supported")
