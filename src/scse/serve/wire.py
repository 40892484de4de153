"""As much of an HTTP client as the load test needs, on the standard library alone, and what is this machine."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

KEY_VARIABLE = "SCSE_API_KEY"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Place:
    """Where a server listens, and the key it wants."""

    host: str
    port: int
    key: str | None = None

    @classmethod
    def of(cls, url: str, key: str | None = None) -> Place:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(url)
        return cls(parts.hostname, parts.port or 80, key)

    @property
    def name(self) -> str:
        """Host and port as addresses write them."""
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


@dataclass
class Reply:
    """A status, and the body as it comes."""

    status: int
    reader: asyncio.StreamReader
    length: int | None

    async def pieces(self) -> AsyncIterator[bytes]:
        if self.length is not None:
            yield await self.reader.readexactly(self.length)
            return
        while size := int((await self.reader.readline()).strip() or b"0", 16):
            yield await self.reader.readexactly(size)
            await self.reader.readline()

    async def body(self) -> bytes:
        return b"".join([piece async for piece in self.pieces()])

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """What a stream says, until it says that it is done."""
        waiting = b""
        async for piece in self.pieces():
            *whole, waiting = (waiting + piece).split(b"\n\n")
            for event in whole:
                data = event.removeprefix(b"data: ")
                if data != b"[DONE]":
                    yield json.loads(data)


@asynccontextmanager
async def asked(place: Place, method: str, path: str, body: bytes = b"") -> AsyncIterator[Reply]:
    """Ask once, on a connection of its own, which is closed whatever has been read."""
    reader, writer = await asyncio.open_connection(place.host, place.port)
    try:
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: {place.name}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Connection: close",
            *([f"Authorization: Bearer {place.key}"] if place.key else []),
        ]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await writer.drain()
        status = int((await reader.readline()).split()[1])
        length = 0
        chunked = False
        while line := (await reader.readline()).strip().lower():
            name, _, value = line.partition(b":")
            length = int(value) if name == b"content-length" else length
            chunked = chunked or (name == b"transfer-encoding" and b"chunked" in value)
        yield Reply(status, reader, None if chunked else length)
    finally:
        writer.close()
