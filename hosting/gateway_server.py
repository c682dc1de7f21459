"""The HTTP server inside a gateway replica, for when the gateway takes HTTP itself instead of Ray Serve's proxies."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Final

import uvicorn
import uvloop
from starlette.types import ASGIApp

from hosting.shared_socket import DRAIN_SECONDS, BorrowedSocket

_log = logging.getLogger(__name__)
_KEEP_ALIVE_SECONDS: Final = 75


class GatewayServer:
    """Serves an ASGI application on a borrowed socket, in a thread with an event loop of its own.

    Ray Serve's own loop for replicas is asyncio's, and slower than uvloop.
    """

    def __init__(self, build: Callable[[], ASGIApp], borrowed: BorrowedSocket) -> None:
        """`build` makes the application; it is called on the server's loop."""
        self._build = build
        self._borrowed = borrowed
        self._server: uvicorn.Server | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gateway-server", daemon=True)

    def start(self) -> None:
        """Returns once it answers.

        Raises:
            RuntimeError: it does not; the log says why.
        """
        self._thread.start()
        threading.Thread(target=self._stop_when_wanted, name="gateway-stop", daemon=True).start()
        self._started.wait()
        if self._server is None:
            raise RuntimeError("the gateway's HTTP server did not start")

    @property
    def is_running(self) -> bool:
        """Whether it answers."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stops accepting, finishes what is being answered, and returns after that."""
        if self._server is not None:
            self._server.should_exit = True
        self._thread.join(DRAIN_SECONDS + 2)

    def _stop_when_wanted(self) -> None:
        self._borrowed.wait_until_wanted_back()
        if self._server is not None:
            self._server.should_exit = True

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except Exception:
            _log.exception("the gateway's HTTP server failed")
        finally:
            self._borrowed.give_back()
            self._started.set()

    async def _serve(self) -> None:
        config = uvicorn.Config(
            self._build(),
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=DRAIN_SECONDS,
        )
        self._server = server = uvicorn.Server(config)
        asyncio.get_running_loop().call_soon(self._started.set)
        await server.serve(sockets=[self._borrowed.listening])
