"""A TCP proxy before a store that is near, so that it answers as one that is further away."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
from types import TracebackType
from typing import Self

_CHUNK = 1 << 20


class LatencyProxy:
    """Passes connections on to `127.0.0.1:port`, what the client sends after `seconds`, what comes back at once.

    So every request and every new connection's first one takes that much longer, while many at once do not wait for
    each other and bandwidth stays what it is: bodies go from socket to socket within the kernel. A context manager;
    `port` is where it listens on loopback.
    """

    def __init__(self, upstream: int, seconds: float) -> None:
        self._upstream = upstream
        self._seconds = seconds
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Wakes the thread that accepts; connections end when their peers do.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._upstream))
            except OSError:
                return
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            late: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
            for work, arguments in (
                (self._receive, (client, late)),
                (_send_late, (server, late)),
                (_splice, (server, client)),
            ):
                threading.Thread(target=work, args=arguments, daemon=True).start()

    def _receive(self, client: socket.socket, late: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        data = b"-"
        while data:
            try:
                data = client.recv(_CHUNK)
            except OSError:
                data = b""
            late.put((time.monotonic() + self._seconds, data))


def _send_late(server: socket.socket, late: queue.SimpleQueue[tuple[float, bytes]]) -> None:
    while True:
        due, data = late.get()
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            if not data:
                server.shutdown(socket.SHUT_WR)
                return
            server.sendall(data)
        except OSError:
            return


def _splice(source: socket.socket, sink: socket.socket) -> None:
    reader, writer = os.pipe()
    try:
        while moved := os.splice(source.fileno(), writer, _CHUNK):
            while moved:
                moved -= os.splice(reader, sink.fileno(), moved)
    except OSError:
        pass
    finally:
        os.close(reader)
        os.close(writer)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
