"""The routes: OpenAI's, /health and /metrics. Every mistake of a client is a 4xx with one line."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from scse.errors import UserError
from scse.serve.answers import Answer
from scse.serve.ask import Ask, Defaults, Reader, parse
from scse.serve.engine import Engine
from scse.serve.limits import HOST, MOST_BODY, Refused
from scse.serve.listener import Listener, Mailbox, News
from scse.serve.metrics import exposition
from scse.serve.sequence import Sequence
from scse.serve.served import Served

log = logging.getLogger("scse.serve.requests")
KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
HINTS = {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": "1"}, 503: {"retry-after": "1"}}
GONE = 499  # what logs say of a client that left; nobody receives it
TOO_LATE = "the server was told to stop and could not wait for this any longer; ask again"
LOOPBACK_NAMES = ("localhost", HOST, "::1")
LONGEST_LINE = 300  # characters of an error's message, which may quote what was sent


@dataclass(frozen=True)
class Settings:
    """What the HTTP side is told.

    `loopback_only` lets requests in under the loopback's names and that of the `host` alone, unless there is a key, so
    that a page from elsewhere cannot reach the server through a browser on this machine.
    """

    api_key: str | None = None
    max_body: int = MOST_BODY
    body_seconds: float = 30.0
    loopback_only: bool = True
    host: str = HOST


class Service:
    """The endpoints around one engine."""

    def __init__(self, served: Served, engine: Engine, defaults: Defaults, settings: Settings) -> None:
        self.served, self.engine, self.settings = served, engine, settings
        self.reader = Reader(served, defaults, served.model.config.shape.context)
        self.created = int(time.time())
        self.draining = False

    def app(self) -> Starlette:
        routes = [
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._model),
            Route("/v1/completions", self._endpoint(self.reader.completion), methods=["POST"]),
            Route("/v1/chat/completions", self._endpoint(self.reader.chat), methods=["POST"]),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
        ]
        return Starlette(
            routes=routes,
            exception_handlers={HTTPException: _as_json, UserError: _as_json, Exception: _as_json},
        )

    def _admit(self, request: Request) -> None:
        key = self.settings.api_key
        if key is None and self.settings.loopback_only:
            self._refuse_strangers(request)
        given = request.headers.get("authorization", "").partition(" ")[2]
        if key is not None and not hmac.compare_digest(given.encode("latin-1"), key.encode()):
            raise Refused("this server wants its API key: 'Authorization: Bearer KEY'", 401)

    def _refuse_strangers(self, request: Request) -> None:
        """Pages from elsewhere cannot reach this machine through a browser on it: neither by a name of theirs that
        leads here, nor by sending requests whose answers they could not read."""
        origin = request.headers.get("origin")
        if not self._is_ours(f"//{request.headers.get('host', '')}"):
            raise Refused("this server answers under this machine's own names alone; start it with --api-key")
        if origin is not None and not self._is_ours(origin):
            raise Refused("a page from elsewhere may not ask this server; start it with --api-key", 403)

    def _is_ours(self, address: str) -> bool:
        try:
            return urlsplit(address).hostname in (*LOOPBACK_NAMES, self.settings.host)
        except ValueError:
            return False

    async def _health(self, request: Request) -> Response:
        status = "draining" if self.draining else "ok"
        return JSONResponse({"status": status}, 503 if self.draining else 200)

    async def _metrics(self, request: Request) -> Response:
        self._admit(request)
        return PlainTextResponse(exposition(self.engine), media_type="text/plain; version=0.0.4")

    def _described(self) -> dict[str, Any]:
        shape = self.served.model.config.shape
        about = {"id": self.served.name, "object": "model", "created": self.created, "owned_by": "local"}
        return {
            **about,
            "max_model_len": shape.context,
            "vocabulary": shape.vocabulary,
            "family": self.served.model.config.family,
        }

    async def _models(self, request: Request) -> Response:
        self._admit(request)
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def _model(self, request: Request) -> Response:
        self._admit(request)
        if request.path_params["name"] != self.served.name:
            raise Refused(f"unknown model; this server has '{self.served.name}'", 404)
        return JSONResponse(self._described())

    def _endpoint(self, understand: Callable[[dict[str, Any]], Ask]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            begin = time.perf_counter()
            try:
                self._admit(request)
                raw = await self._body(request)
                ask = await asyncio.to_thread(lambda: understand(parse(raw)))
                exchange = Exchange(self, ask, request, begin)
            except UserError as error:
                _log(path=request.url.path, status=_status(error), seconds=time.perf_counter() - begin)
                raise
            except ClientDisconnect:  # in the middle of its body
                _log(path=request.url.path, status=GONE, seconds=time.perf_counter() - begin)
                return Response(status_code=GONE)
            return exchange if ask.stream else await exchange.whole()

        return endpoint

    async def _body(self, request: Request) -> bytes:
        """No longer than allowed, and not slower than a real client sends."""
        found, most = bytearray(), self.settings.max_body
        too_long = Refused(f"the body is longer than {most} bytes", 413)
        if int(request.headers.get("content-length", 0)) > most:  # h11 lets whole numbers through alone
            raise too_long

        async def read() -> None:
            async for piece in request.stream():
                found.extend(piece)
                if len(found) > most:
                    raise too_long

        try:
            await asyncio.wait_for(read(), self.settings.body_seconds)
        except TimeoutError:
            raise Refused("the body did not come in time", 408) from None
        return bytes(found)


class Exchange(Response):
    """One request under way. As a response it is a stream of events; `whole` waits for the end."""

    def __init__(self, service: Service, ask: Ask, request: Request, begin: float) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self.service, self.ask, self.request, self.begin = service, ask, request, begin
        self.answer = Answer(ask, service.served.name, service.served.tokenizer)
        self.mailbox = Mailbox(asyncio.get_running_loop())
        deadline = None if ask.deadline is None else time.monotonic() + ask.deadline
        self.sequences = [
            Sequence(wanted, self._listener(choice), self, deadline) for choice, wanted in enumerate(ask.wanted)
        ]
        service.engine.submit(self.sequences)

    def _listener(self, choice: int) -> Listener:
        return Listener(choice, self.service.served.tokenizer, self.ask.stops, self.mailbox)

    async def _news(self, receive: Receive) -> AsyncGenerator[News, None]:
        """All there is to tell; what is still running when the client leaves is cancelled."""
        leaving = asyncio.ensure_future(_left(receive))
        try:
            while not self.answer.finished:
                coming = asyncio.ensure_future(self.mailbox.queue.get())
                await asyncio.wait({leaving, coming}, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    coming.cancel()
                    raise ClientDisconnect
                news = coming.result()
                self.answer.take(news)
                yield news
        finally:
            leaving.cancel()
            self.service.engine.cancel(self.sequences)

    async def whole(self) -> Response:
        status = GONE
        try:
            async with aclosing(self._news(self.request.receive)) as all_news:
                async for _ in all_news:
                    pass
            failure = self.answer.failure
            status = 200 if failure is None else failure[0]
        except ClientDisconnect:
            return Response(status_code=GONE)
        except asyncio.CancelledError:
            status = 503
            return _error(status, TOO_LATE)
        finally:
            self._log(status)
        return JSONResponse(self.answer.whole()) if failure is None else _error(*failure)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = GONE
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            for part in self.answer.opening():
                await self._send(send, json.dumps(part))
            async with aclosing(self._news(receive)) as all_news:
                async for news in all_news:
                    for part in self.answer.part(news):
                        await self._send(send, json.dumps(part))
            failure = self.answer.failure
            for part in self.answer.closing() if failure is None else [_error_body(*failure)]:
                await self._send(send, json.dumps(part))
            await self._send(send, "[DONE]", more=False)
            status = 200 if failure is None else failure[0]
        except (ClientDisconnect, OSError):
            """Its sequences have been cancelled."""
        except asyncio.CancelledError:
            status = 503
            await self._send(send, json.dumps(_error_body(status, TOO_LATE)), more=False)
        finally:
            self.service.engine.cancel(self.sequences)
            self._log(status)

    async def _send(self, send: Send, data: str, more: bool = True) -> None:
        await send({"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": more})

    def _log(self, status: int) -> None:
        usage = self.answer.usage()
        _log(
            id=self.answer.id,
            path=self.request.url.path,
            status=status,
            seconds=time.perf_counter() - self.begin,
            stream=self.ask.stream,
            ends=sorted({choice.end or "cancelled" for choice in self.answer.choices}),
            **{name: usage[name] for name in ("prompt_tokens", "completion_tokens", "mean_loops")},
        )


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _log(**facts: Any) -> None:
    """One line of JSON about a request, and never a word of what was asked or answered."""
    facts = {name: round(value, 6) if isinstance(value, float) else value for name, value in facts.items()}
    log.info("%s", json.dumps({"time": round(time.time(), 3), **facts}))


def _status(error: Exception) -> int:
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, Refused):
        return error.status
    return 400 if isinstance(error, UserError) else 500


def _error_body(status: int, message: str) -> dict[str, Any]:
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    if len(message) > LONGEST_LINE:
        message = f"{message[: LONGEST_LINE // 2]} … {message[-LONGEST_LINE // 2 :]}"
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse(_error_body(status, message), status, headers={**HINTS.get(status, {}), **(headers or {})})


def _as_json(request: Request, error: Exception) -> Response:
    status = _status(error)
    message = error.detail if isinstance(error, HTTPException) else str(error)
    said = message if status < 500 or isinstance(error, UserError) else "the server made a mistake"
    return _error(status, said, getattr(error, "headers", None))
