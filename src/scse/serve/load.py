"""A load test: requests that arrive whether or not the server keeps up, some of them from clients that misbehave."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from scse.errors import UserError
from scse.serve.wire import Place, Reply, asked

KINDS = ("plain", "stream", "leaves", "slow", "malformed")
WEIGHTS = (0.4, 0.35, 0.08, 0.05, 0.12)
SLOW_SECONDS = 0.05
PERCENTILES = (50, 90, 99)
THRESHOLD = 0.5  # of the requests that ask for early exit


@dataclass(frozen=True)
class Load:
    """So many requests at a mean rate per second, none after `seconds`, drawn from a seed.

    `depths` and `thresholds` are drawn from for each request; None as a threshold asks for no early exit.
    """

    requests: int
    rate: float
    seconds: float = 600.0
    patience: float = 120.0
    depths: tuple[int, ...] = (2, 4, 8)
    thresholds: tuple[float | None, ...] = (None, THRESHOLD)
    max_tokens: int = 32
    seed: int = 0
    kinds: tuple[str, ...] = KINDS


@dataclass
class Seen:
    """What came back."""

    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    answered: int = 0
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    tokens: int = 0
    prompt_tokens: int = 0
    loops: int = 0

    def usage(self, found: dict[str, Any]) -> None:
        self.tokens += found["completion_tokens"]
        self.prompt_tokens += found["prompt_tokens"]
        self.loops += found.get("loops", 0)


class LoadTest:
    def __init__(self, place: Place, load: Load) -> None:
        self.place, self.load, self.seen = place, load, Seen()
        self.draw = random.Random(load.seed)

    async def run(self) -> dict[str, Any]:
        """The report, once every request has been answered, refused, or given up."""
        model = await self._model()
        begin = time.perf_counter()
        at, under_way = 0.0, set[asyncio.Task[None]]()
        for _ in range(self.load.requests):
            at += self.draw.expovariate(self.load.rate)
            if at > self.load.seconds:
                break
            kind = self.draw.choices(self.load.kinds, [WEIGHTS[KINDS.index(kind)] for kind in self.load.kinds])[0]
            body = self._malformed(model) if kind == "malformed" else json.dumps(self._body(model, kind)).encode()
            await asyncio.sleep(begin + at - time.perf_counter())
            task = asyncio.create_task(self._client(kind, body))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        await asyncio.gather(*under_way)
        return self._report(time.perf_counter() - begin)

    async def _model(self) -> dict[str, Any]:
        try:
            async with asked(self.place, "GET", "/v1/models") as reply:
                found = json.loads(await reply.body())
                if reply.status != 200:
                    raise UserError(f"the server answers {reply.status}: {found['error']['message']}")
        except (OSError, ValueError, LookupError, asyncio.IncompleteReadError):
            raise UserError(
                f"no model answers at {self.place.host}:{self.place.port}; start one with 'scse serve RUN'"
            ) from None
        model: dict[str, Any] = found["data"][0]
        return model

    def _body(self, model: dict[str, Any], kind: str) -> dict[str, Any]:
        context, draw = model.get("max_model_len", 128), self.draw
        count = draw.randint(1, min(self.load.max_tokens, max(1, context // 2)))
        ids = [draw.randrange(model.get("vocabulary", 256)) for _ in range(draw.randint(1, max(1, context - count)))]
        body: dict[str, Any] = {
            "model": model["id"],
            "prompt": ids,
            "max_tokens": count,
            "loops": draw.choice(self.load.depths),
            "temperature": draw.choice([0, 1]),
            "seed": draw.randrange(1000),
        }
        threshold = draw.choice(self.load.thresholds)
        if threshold is not None:
            body["exit_threshold"] = threshold
        if kind in ("stream", "leaves", "slow"):
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    def _malformed(self, model: dict[str, Any]) -> bytes:
        """A good body with one thing wrong, or nothing that is JSON."""
        draw, good = self.draw, self._body(model, "plain")
        faults: list[dict[str, Any]] = [
            {"prompt": draw.choice([5, {}, [[]], [1.5], "", [10**9], [None], ["a", 1]])},
            {"max_tokens": draw.choice([-1, "many", 10**9, 1e3, True])},
            {"loops": draw.choice([0, -3, 10**6, "deep"])},
            {"temperature": draw.choice([-1, "hot", [0]])},
            {"exit_threshold": draw.choice([-1, "x"])},
            {"exit_rule": "upddate", "exit_threshold": 1},
            {"exit_treshold": 1},
            {"n": draw.choice([0, 10**4])},
            {"stop": draw.choice([3, [""], ["x"] * 99])},
            {"model": "another"},
            {"stream": "yes"},
            {"budget": draw.choice([0, "small"])},
        ]
        broken = [
            b"",
            b"{",
            b"[1, 2",
            b"\xff\xfe\x00",
            b'{"prompt": NaN}',
            b"[" * 5000,
            b'"text"',
            b'{"prompt": "\\ud800"}',
        ]
        wrong = json.dumps(good | draw.choice(faults)).encode()
        return draw.choice([wrong, wrong, draw.choice(broken)])

    async def _client(self, kind: str, body: bytes) -> None:
        self.seen.kinds[kind] += 1
        try:
            await asyncio.wait_for(self._ask(kind, body), self.load.patience)
        except TimeoutError:
            self.seen.errors["no answer in time"] += 1
        except ConnectionRefusedError:
            self.seen.errors["connection refused"] += 1
        except (OSError, asyncio.IncompleteReadError, IndexError):
            self.seen.errors["connection broken"] += 1
        except (ValueError, LookupError, TypeError):
            self.seen.errors["an answer in no known form"] += 1

    async def _ask(self, kind: str, body: bytes) -> None:
        begin = time.perf_counter()
        async with asked(self.place, "POST", "/v1/completions", body) as reply:
            self.seen.statuses[f"{reply.status // 100}xx"] += 1
            if reply.status == 429:
                self.seen.statuses["429"] += 1
            elif kind == "malformed":
                await self._expect_refusal(reply)
            elif reply.status != 200:
                self.seen.errors[f"status {reply.status}"] += 1
            elif kind == "plain":
                self.seen.usage(json.loads(await reply.body())["usage"])
                self.seen.answered += 1
                self.seen.whole.append(time.perf_counter() - begin)
            else:
                await self._follow(kind, reply, begin)

    async def _expect_refusal(self, reply: Reply) -> None:
        """A mistake of the client's must be answered with 4xx and one line."""
        message = json.loads(await reply.body())["error"]["message"] if 400 <= reply.status < 500 else ""
        if not message or "\n" in message:
            self.seen.errors[f"a malformed body was answered with {reply.status}"] += 1

    async def _follow(self, kind: str, reply: Reply, begin: float) -> None:
        first = True
        async for event in reply.events():
            if "error" in event:
                self.seen.errors[f"status {event['error']['code']}"] += 1
                return
            if first:
                self.seen.first.append(time.perf_counter() - begin)
                first = False
            if kind == "leaves":
                return
            if kind == "slow":
                await asyncio.sleep(SLOW_SECONDS)
            if "usage" in event:
                self.seen.usage(event["usage"])
        self.seen.answered += 1
        if kind == "stream":  # how long a slow reader takes says nothing about the server
            self.seen.whole.append(time.perf_counter() - begin)

    def _report(self, seconds: float) -> dict[str, Any]:
        seen = self.seen
        return {
            "requests": sum(seen.kinds.values()),
            "kinds": dict(seen.kinds),
            "seconds": seconds,
            "answered": seen.answered,
            "refused": seen.statuses["429"],
            "tokens": seen.tokens,
            "tokens_per_second": seen.tokens / seconds,
            "prompt_tokens": seen.prompt_tokens,
            "mean_loops": seen.loops / seen.tokens if seen.tokens else 0.0,
            "first_token_seconds": percentiles(seen.first),
            "request_seconds": percentiles(seen.whole),
            "errors": dict(seen.errors),
        }


def run_load(place: Place, load: Load) -> dict[str, Any]:
    """Ask all that, and report; in a thread of its own where an event loop already runs, as in a notebook."""
    test = LoadTest(place, load)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(test.run())
    with ThreadPoolExecutor(1) as alone:
        return alone.submit(lambda: asyncio.run(test.run())).result()


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """{'p50': …} by the nearest rank."""
    ordered = sorted(values)
    return {f"p{p}": ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in PERCENTILES if ordered}
