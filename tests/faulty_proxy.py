"""A small HTTP proxy in front of a store that does on command what networks and stores do on bad days."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")
Kind = Literal["list", "meta", "get", "write"]
Action = Literal["drop", "stall", "corrupt", "status", "latency"]
_STATUS_TEXT = {401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 429: "Too Many Requests", 503: "Unavailable"}


@dataclass
class Fault:
    """What happens to the next `times` requests of the given kinds (all kinds when empty)."""

    action: Action
    kinds: frozenset[Kind] = frozenset()
    times: int = 1
    after: int = 0
    """Bytes of the body that still go through (drop, stall), or the offset of the byte that is flipped (corrupt)."""
    status: int = 0
    seconds: float = 0.0
    """Delay before the request is passed on (latency)."""
    hook: Callable[[], None] | None = None
    """Called in the proxy's thread when the fault strikes, before anything else (any action)."""
    quiet: int = 0
    """How many of those requests see nothing of it."""
    struck: int = 0


@dataclass(frozen=True)
class Request:
    """A request that came through."""

    kind: Kind
    target: str
    range: str | None


@dataclass
class FaultyProxy:
    """Passes requests on to `upstream` (`http://host:port`), one per connection, from a thread of its own.

    `with FaultyProxy(emulator.url) as proxy:` then `proxy.url` in place of the store's; `proxy.drop("get", after=1000)`
    and its siblings order faults; `proxy.counts["list"]` and `proxy.requests` say what was asked for.
    """

    upstream: str
    url: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    requests: list[Request] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    down: bool = False
    """Connections are closed as soon as they are made."""
    connections: int = 0

    def __enter__(self) -> FaultyProxy:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="faulty-proxy", daemon=True)
        self._thread.start()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def drop(self, *kinds: Kind, after: int = 0, times: int = 1) -> Fault:
        """Cut the connection after so many bytes of the body."""
        return self._order(Fault("drop", frozenset(kinds), times, after))

    def stall(self, *kinds: Kind, after: int = 0, times: int = 1) -> Fault:
        """Send nothing more after so many bytes of the body, with the connection open."""
        return self._order(Fault("stall", frozenset(kinds), times, after))

    def corrupt(self, *kinds: Kind, at: int = 0, times: int = 1) -> Fault:
        """Flip the bits of the body's byte at this offset."""
        return self._order(Fault("corrupt", frozenset(kinds), times, at))

    def status(self, status: int, *kinds: Kind, times: int = 1) -> Fault:
        """Answer with an HTTP error."""
        return self._order(Fault("status", frozenset(kinds), times, status=status))

    def latency(self, seconds: float, *kinds: Kind, times: int = 1_000_000) -> Fault:
        """Wait before passing a request on."""
        return self._order(Fault("latency", frozenset(kinds), times, seconds=seconds))

    def before(self, hook: Callable[[], None], *kinds: Kind, skip: int = 0) -> Fault:
        """Call a function before one request is passed on, as another client of the store would get in between.

        `skip` is how many requests of the kinds go through first.
        """
        return self._order(Fault("latency", frozenset(kinds), skip + 1, hook=hook, quiet=skip))

    def heal(self) -> None:
        """Forget all faults, and the counts."""
        self.faults.clear()
        self.down = False
        self.counts.clear()
        self.requests.clear()

    def _order(self, fault: Fault) -> Fault:
        self.faults.append(fault)
        return fault

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        try:
            if not self.down:
                await self._relay(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            with contextlib.suppress(OSError):
                writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        kind = _kind(method, target)
        self.counts[kind] += 1
        self.requests.append(Request(kind, target, headers.get("range")))
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        faults = self._strike(kind)
        for fault in faults:
            if fault.hook is not None:
                await asyncio.to_thread(fault.hook)
            if fault.action == "latency":
                await asyncio.sleep(fault.seconds)
            elif fault.action == "status":
                text = f"HTTP/1.1 {fault.status} {_STATUS_TEXT.get(fault.status, 'Error')}"
                writer.write(f"{text}\r\ncontent-length: 4\r\nconnection: close\r\n\r\nno.\n".encode())
                await writer.drain()
                return
        kept = [line for line in lines if not line.lower().startswith("connection:")]
        upstream_reader, upstream_writer = await asyncio.open_connection(*_address(self.upstream))
        try:
            upstream_writer.write("\r\n".join([first, *kept, "Connection: close", "", ""]).encode("latin-1") + body)
            await upstream_writer.drain()
            answer = (await upstream_reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip("\r\n").split("\r\n")
            kept = [line for line in answer if not line.lower().startswith("connection:")]
            writer.write("\r\n".join([*kept, "Connection: close", "", ""]).encode("latin-1"))
            await self._body(upstream_reader, reader, writer, faults)
        finally:
            upstream_writer.close()

    async def _body(
        self,
        upstream: asyncio.StreamReader,
        client: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        faults: list[Fault],
    ) -> None:
        sent = 0
        while chunk := await upstream.read(1 << 16):
            for fault in faults:
                inside = fault.after - sent
                if not inside < len(chunk):
                    continue
                if fault.action == "corrupt" and inside >= 0:
                    chunk = chunk[:inside] + bytes([chunk[inside] ^ 0xFF]) + chunk[inside + 1 :]
                elif fault.action in ("drop", "stall"):
                    writer.write(chunk[:inside])
                    await writer.drain()
                    if fault.action == "stall":
                        await client.read()
                    # Without a moment's wait, aborting would take away bytes that are still in our buffer.
                    await asyncio.sleep(0.01)
                    writer.transport.abort()
                    return
            writer.write(chunk)
            await writer.drain()
            sent += len(chunk)

    def _strike(self, kind: Kind) -> list[Fault]:
        striking = [fault for fault in self.faults if fault.struck < fault.times and kind in (fault.kinds or {kind})]
        for fault in striking:
            fault.struck += 1
        return [fault for fault in striking if fault.struck > fault.quiet]


def _kind(method: str, target: str) -> Kind:
    if method == "HEAD":
        return "meta"
    if method != "GET":
        return "write"
    url = urlsplit(target)
    if "list-type=2" in url.query or (url.path.startswith("/storage/v1/b/") and url.path.endswith("/o")):
        return "list"
    return "meta" if url.path.startswith("/storage/v1/") and "alt=media" not in url.query else "get"


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port
