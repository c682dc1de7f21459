"""Noticing that a request's client has gone, so that nothing is waited for on its behalf any longer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from starlette.types import Receive

T = TypeVar("T")

receive_of_request: Final[ContextVar[Receive | None]] = ContextVar("receive_of_request", default=None)
"""The ASGI `receive` of the request that is being answered, where that can be told."""


class ClientGone(Exception):
    """The client disconnected before its answer was there; there is nobody to answer."""


async def while_client_waits(work: Coroutine[Any, Any, T]) -> T:
    """Awaits the work, and cancels it when the client of the request that it is for disconnects.

    For work that takes long: a request's body, where it has one, must have been read.

    Raises:
        ClientGone: the client has gone.
    """
    receive = receive_of_request.get()
    if receive is None:
        return await work
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_until_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return await working
    finally:
        working.cancel()
        watching.cancel()
        # Awaited so that nobody is told of errors that come of having been cancelled.
        await asyncio.gather(working, watching, return_exceptions=True)


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
