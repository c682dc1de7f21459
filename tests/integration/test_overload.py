"""A shard that has enough to do says so, and only then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hosting.settings import Settings
from hosting.shard import Shard
from loaders.errors import Overloaded
from loaders.jobs import ToolJob
from loaders.records import RecordHeader, record_bytes
from loaders.sessions import HostFile
from loaders.stored_file import StoredFile

RECORD = record_bytes(b"{}", RecordHeader("application/json", 2, "xprof"))


def job(number: int) -> ToolJob:
    """A job of its own key."""
    file = StoredFile(f"gs://b/{number}", 1, 0.0, "etag", None)
    return ToolJob("s", "root", "overview_page", (), (HostFile("h", file),), False)


def held_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Shard, asyncio.Event]:
    """A shard whose queue takes two, and what lets its results be made."""
    shard = Shard(Settings(state_dir=folder, max_waiting=2))
    release = asyncio.Event()

    async def make(_: ToolJob, __: object) -> bytes:
        await release.wait()
        return RECORD

    monkeypatch.setattr(shard._parser, "tool_data", make)
    return shard, release


async def test_a_full_queue_is_a_429_with_retry_after_and_what_waits_is_still_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, release = held_up(tmp_path, monkeypatch)
    waiting = [asyncio.ensure_future(shard.tool_data(job(n), "r")) for n in (1, 2, 1)]
    await asyncio.sleep(0.2)
    refused = await shard.tool_data(job(3), "r")
    assert isinstance(refused.problem, Overloaded)
    assert refused.problem.status == 429
    assert refused.problem.retry_after
    release.set()
    assert all(reply.problem is None for reply in await asyncio.gather(*waiting))
    assert (await shard.tool_data(job(3), "r")).problem is None
    await shard._pool.close()


async def test_what_nobody_waits_for_does_not_count_against_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, release = held_up(tmp_path, monkeypatch)
    warming = [asyncio.ensure_future(shard.tool_data(job(n), "r", urgent=False)) for n in range(3)]
    await asyncio.sleep(0.1)
    people = [asyncio.ensure_future(shard.tool_data(job(n), "r")) for n in (10, 11)]
    await asyncio.sleep(0.1)
    assert isinstance((await shard.tool_data(job(12), "r")).problem, Overloaded)
    release.set()
    assert all(reply.problem is None for reply in await asyncio.gather(*people))
    warmed = await asyncio.gather(*warming)
    assert [isinstance(reply.problem, Overloaded) for reply in warmed] == [False, False, True]
    await shard._pool.close()
