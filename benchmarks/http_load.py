"""Keep-alive connections that ask one address again and again, cheaply enough not to be what is measured."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import uvloop

_END_OF_HEADERS = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Load:
    """What came back."""

    size: int
    """Bytes of the last body."""
    median: float
    """Seconds."""
    p99: float
    """Seconds."""
    per_second: float
    """Requests, of all connections together."""


class _Connection(asyncio.Protocol):
    """Sends a request when it is connected and whenever an answer is whole, until it is told to stop."""

    def __init__(self, request: bytes, deadline: float) -> None:
        self._request = request
        self._deadline = deadline
        self._head = b""
        self._missing = -1
        self._began = 0.0
        self.size = 0
        self.times: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._send()

    def _send(self) -> None:
        self._began = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._missing < 0:
            self._head += data
            head, separator, rest = self._head.partition(_END_OF_HEADERS)
            if not separator:
                return
            status, _, fields = head.decode("latin-1").partition("\r\n")
            if status.split()[1] not in ("200", "304"):
                self._fail(status)
                return
            lengths = [line for line in fields.lower().split("\r\n") if line.startswith("content-length:")]
            self.size = int(lengths[0].split(":")[1]) if lengths and " 200" in status else 0
            self._missing = self.size - len(rest)
        else:
            self._missing -= len(data)
        if self._missing > 0:
            return
        self._head, self._missing = b"", -1
        now = time.perf_counter()
        self.times.append(now - self._began)
        if now < self._deadline:
            self._send()
        elif not self.done.done():
            self.done.set_result(None)
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the connection was closed: {error}")

    def _fail(self, words: str) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(words))
            self._transport.close()


def load(address: str, path: str, *, connections: int, seconds: float, headers: dict[str, str] | None = None) -> Load:
    """Asks for `path` on so many connections for so long.

    Raises:
        ConnectionError: an answer other than 200 and 304, or a connection that was closed.
    """
    return uvloop.run(_load(address, path, connections, seconds, headers or {}))


async def _load(address: str, path: str, connections: int, seconds: float, headers: dict[str, str]) -> Load:
    parts = urlsplit(address)
    host, port = parts.hostname or "", parts.port or 80
    lines = [f"GET {path} HTTP/1.1", f"Host: {parts.netloc}", "Accept-Encoding: gzip"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    request = "\r\n".join([*lines, "", ""]).encode()
    began = time.perf_counter()
    loop = asyncio.get_running_loop()
    opened = [
        await loop.create_connection(lambda: _Connection(request, began + seconds), host, port)
        for _ in range(connections)
    ]
    protocols = [protocol for _, protocol in opened]
    await asyncio.gather(*(protocol.done for protocol in protocols))
    took = time.perf_counter() - began
    times = sorted(seconds for protocol in protocols for seconds in protocol.times)
    return Load(protocols[0].size, statistics.median(times), times[len(times) * 99 // 100], len(times) / took)
