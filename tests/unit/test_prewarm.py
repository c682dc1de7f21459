"""What is made before anybody asks, in which order, and how often."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from hosting.prewarm import Prewarmer, arrived
from hosting.replies import RecordReply, as_array
from hosting.services import Services
from hosting.settings import Settings
from loaders.errors import InvalidProfile
from loaders.jobs import ToolJob
from loaders.records import RecordHeader, record_bytes
from loaders.result_store import ResultStore
from loaders.sessions import HostFile, Session, Snapshot
from loaders.stored_file import StoredFile
from loaders.stores import StoreOptions

OFFERED = ["graph_viewer", "op_profile", "trace_viewer@", "memory_profile", "overview_page", "kernel_stats"]


class Shards:
    """Notes what is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bool, int]] = []
        self.bad: set[str] = set()

    async def tool_data(self, job: ToolJob, *, urgent: bool = True) -> RecordReply:
        self.asked.append((job.tool, urgent, len(job.hosts)))
        await asyncio.sleep(0)
        if job.tool in self.bad:
            return RecordReply("key", problem=InvalidProfile("damaged"))
        body = json.dumps({"tools": OFFERED, "modules": []}).encode()
        return RecordReply("key", record=as_array(record_bytes(body, RecordHeader("application/json", 1, "xprof"))))


def session(name: str = "run/s", modified: float = 0.0, etag: str = "1") -> Session:
    hosts = tuple(
        HostFile(host, StoredFile(f"gs://b/{name}/{host}.xplane.pb", 10, modified, etag, None)) for host in ("b", "a")
    )
    return Session(name, "root", f"gs://b/{name}", hosts, modified, True)


async def until_quiet(prewarmer: Prewarmer) -> None:
    while prewarmer._workers:
        await asyncio.sleep(0)


async def test_all_tools_are_made_without_urgency_the_default_ones_first() -> None:
    shards = Shards()
    prewarmer = Prewarmer(shards, 1 << 30)
    prewarmer.add(session())
    await until_quiet(prewarmer)
    tools = [tool for tool, _, _ in shards.asked]
    assert tools[0] == "tool_names"
    assert set(tools[1:3]) == {"overview_page", "trace_viewer@"}
    assert set(tools[3:]) == {"memory_profile", "op_profile", "kernel_stats"}
    assert not any(urgent for _, urgent, _ in shards.asked)
    hosts = {tool: number for tool, _, number in shards.asked}
    assert (hosts["overview_page"], hosts["trace_viewer@"]) == (2, 1)


async def test_a_session_is_taken_once_until_its_files_change() -> None:
    shards = Shards()
    prewarmer = Prewarmer(shards, 1 << 30)
    for _ in range(3):
        prewarmer.add(session())
        await until_quiet(prewarmer)
    once = len(shards.asked)
    prewarmer.add(session(etag="2"))
    await until_quiet(prewarmer)
    assert len(shards.asked) == 2 * once


async def test_named_tools_alone_are_made_when_asked_for() -> None:
    shards = Shards()
    prewarmer = Prewarmer(shards, 1 << 30)
    prewarmer.add(session(), ["op_profile"])
    await until_quiet(prewarmer)
    assert [tool for tool, _, _ in shards.asked] == ["op_profile"]


async def test_a_tool_that_fails_does_not_keep_the_others_from_being_made() -> None:
    shards = Shards()
    shards.bad = {"overview_page"}
    prewarmer = Prewarmer(shards, 1 << 30)
    prewarmer.add(session())
    await until_quiet(prewarmer)
    assert {"overview_page", "trace_viewer@", "op_profile"} <= {tool for tool, _, _ in shards.asked}


def test_sessions_that_become_complete_arrive_and_old_ones_at_the_start_do_not() -> None:
    day = 24 * 3600.0
    old, young, growing = (
        session("old", 0.0),
        session("young", 9 * day),
        replace(session("new", 10 * day), complete=False),
    )
    start = Snapshot(1, (old, young, growing), ())
    assert [s.name for s in arrived(None, start, 9.5 * day)] == ["young"]
    later = Snapshot(2, (old, young, replace(growing, complete=True)), ())
    assert [s.name for s in arrived(start, later, 10 * day)] == ["new"]
    assert arrived(later, later, 10 * day) == []


async def test_opening_a_tool_logs_the_plan_and_has_the_others_made_unless_that_is_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shards = Shards()
    results = ResultStore(f"file://{tmp_path}", StoreOptions())
    with caplog.at_level(logging.DEBUG, "hosting.services"):
        for mode, made in (("off", False), ("links", True)):
            services = Services(
                Settings(prewarm=mode, shards=4, shard_budget_mib=0),  # type: ignore[arg-type]
                None,  # type: ignore[arg-type]
                None,  # type: ignore[arg-type]
                shards,  # type: ignore[arg-type]
                results,
            )
            services.follow(session())
            await until_quiet(services.prewarmer)
            assert bool(shards.asked) is made
    [first, _] = [record for record in caplog.records if record.message == "plan"]
    assert first.__dict__["split"] is True
    assert first.__dict__["bytes"] == 20
    assert "--shard-budget-mib" in first.__dict__["reason"]
    assert {host: size for host, (size, _) in first.__dict__["hosts"].items()} == {"a": 10, "b": 10}
