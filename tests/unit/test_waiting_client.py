"""Work that is done for a client ends when the client goes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from starlette.types import Message

from hosting.waiting_client import ClientGone, receive_of_request, while_client_waits


class Client:
    """A client without a body to send, which goes when told to."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self._asked = False

    async def receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}


@contextmanager
def answering(client: Client) -> Iterator[None]:
    token = receive_of_request.set(client.receive)
    try:
        yield
    finally:
        receive_of_request.reset(token)


class Work:
    """Takes until it is told to end, and says how it ended."""

    def __init__(self) -> None:
        self.end = asyncio.Event()
        self.ended = ""

    async def run(self) -> int:
        try:
            await self.end.wait()
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        self.ended = "done"
        return 7


async def test_the_work_is_cancelled_when_the_client_goes() -> None:
    client, work = Client(), Work()
    with answering(client):
        waiting = asyncio.ensure_future(while_client_waits(work.run()))
        await asyncio.sleep(0.01)
        assert work.ended == ""
        client.gone.set()
        with pytest.raises(ClientGone):
            await waiting
    assert work.ended == "cancelled"
    assert len(asyncio.all_tasks()) == 1


async def test_what_the_work_gives_or_raises_reaches_a_client_that_waits() -> None:
    async def fail() -> None:
        raise ValueError("no luck")

    work = Work()
    work.end.set()
    with answering(Client()):
        assert await while_client_waits(work.run()) == 7
        with pytest.raises(ValueError, match="no luck"):
            await while_client_waits(fail())
    assert len(asyncio.all_tasks()) == 1


async def test_whoever_cancels_the_request_cancels_the_work() -> None:
    work = Work()
    with answering(Client()):
        waiting = asyncio.ensure_future(while_client_waits(work.run()))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert work.ended == "cancelled"


async def test_work_for_nobody_in_particular_just_runs() -> None:
    work = Work()
    work.end.set()
    assert await while_client_waits(work.run()) == 7
