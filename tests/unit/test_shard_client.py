"""Calls of shards that hang, die or lose what they were asked: the caller gets its answer all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hosting import shard_client
from hosting.affinity_router import Owners
from hosting.replies import RecordReply
from hosting.shard_client import ShardClient
from loaders.errors import Overloaded, ShardLost
from loaders.jobs import ToolJob
from loaders.sessions import HostFile
from loaders.stored_file import StoredFile

JOB = ToolJob("s", "root", "op_profile", (), (HostFile("h", StoredFile("gs://b/h", 1, 0.0, "e", None)),), False)


class Response:
    """What Ray's handle gives for a call."""

    def __init__(self, work: Awaitable[Any]) -> None:
        self._work = asyncio.ensure_future(work)

    def __await__(self) -> Any:
        return self._work.__await__()

    def cancel(self) -> None:
        self._work.cancel()


class Handle:
    """Ray's handle, with scripted shards: `answer` gets the call's owners and method."""

    def __init__(self, answer: Callable[[Owners, str], Awaitable[Any]]) -> None:
        self.answer = answer
        self.calls: list[Owners] = []
        self._owners = Owners("")
        self._method = ""

    def options(self, *, session_id: str, method_name: str) -> Handle:
        chosen = Handle(self.answer)
        chosen.calls = self.calls
        chosen._owners, chosen._method = Owners.decode(session_id), method_name
        return chosen

    def remote(self, *_: Any) -> Response:
        if self._method == "call":
            self.calls.append(self._owners)
        return Response(self.answer(self._owners, self._method))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_client, "_PATIENCE_SECONDS", 0.05)


async def never() -> Any:
    await asyncio.sleep(3600)


async def test_a_call_that_the_owner_works_on_is_waited_for() -> None:
    async def answer(_: Owners, method: str) -> Any:
        if method == "works_on":
            return True
        await asyncio.sleep(0.5)
        return RecordReply("made")

    handle = Handle(answer)
    assert (await ShardClient(handle).tool_data(JOB)).key == "made"  # type: ignore[arg-type]
    assert len(handle.calls) == 1


async def test_a_call_whose_answer_was_lost_is_made_again_at_the_same_owner() -> None:
    handle = Handle(lambda owners, method: answer(owners, method))

    async def answer(_: Owners, method: str) -> Any:
        if method == "works_on":
            return False
        return await never() if len(handle.calls) == 1 else RecordReply("second")

    assert (await ShardClient(handle).tool_data(JOB)).key == "second"  # type: ignore[arg-type]
    assert [owners.first for owners in handle.calls] == [0, 0]


async def test_an_owner_that_hangs_is_passed_over_and_avoided_for_a_while() -> None:
    async def answer(owners: Owners, _: str) -> Any:
        return await never() if owners.first == 0 else RecordReply("next")

    handle = Handle(answer)
    client = ShardClient(handle)  # type: ignore[arg-type]
    assert (await client.tool_data(JOB)).key == "next"
    assert (await client.tool_data(JOB)).key == "next"
    assert [owners.first for owners in handle.calls] == [0, 1, 1]


async def test_two_that_hang_are_an_error_that_says_so() -> None:
    async def answer(_: Owners, __: str) -> Any:
        return await never()

    with pytest.raises(ShardLost, match="op_profile of session 's'"):
        await ShardClient(Handle(answer)).tool_data(JOB)  # type: ignore[arg-type]


async def test_an_owner_with_a_full_queue_is_passed_over_and_two_are_a_429() -> None:
    full = RecordReply("k", problem=Overloaded("full"))

    async def first_full(owners: Owners, _: str) -> Any:
        return full if owners.first == 0 else RecordReply("next")

    assert (await ShardClient(Handle(first_full)).tool_data(JOB)).key == "next"  # type: ignore[arg-type]

    async def all_full(_: Owners, __: str) -> Any:
        return full

    reply = await ShardClient(Handle(all_full)).tool_data(JOB)  # type: ignore[arg-type]
    assert isinstance(reply.problem, Overloaded)
