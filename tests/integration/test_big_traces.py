"""Traces of any size: answers end at a bound and say so, what is hidden appears on zooming in, and zooming, details and
search need nothing but the converted trace."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from benchmarks.same_answer import same_answer
from loaders import trace_blocks
from loaders.derived_files import blocks_key
from loaders.engines import tasks, trace_answers
from loaders.engines.pool import EngineLimits, EnginePool, session_folder
from loaders.errors import ProfileError
from loaders.file_cache import FileCache
from loaders.jobs import ToolJob
from loaders.parser import Parser
from loaders.records import Record, RecordHeader
from loaders.sessions import HostFile
from loaders.stored_file import Checksum, Skipped, StoredFile
from loaders.tools import TOOLS, canonical_parameters

TRACE = TOOLS["trace_viewer@"]


def bounded_to(max_bytes: int, merged_tables: int, task: tasks.ToolTask) -> RecordHeader:
    """A tool's data with other bounds than the built-in ones; runs in an engine process."""
    saved = trace_answers.MAX_BYTES, trace_answers._MERGED_TABLES
    trace_answers.MAX_BYTES, trace_answers._MERGED_TABLES = max_bytes, merged_tables  # type: ignore[misc]
    try:
        return tasks.tool_data(task)
    finally:
        trace_answers.MAX_BYTES, trace_answers._MERGED_TABLES = saved  # type: ignore[misc]


class Engine:
    """An engine process, and a folder with hosts' converted traces."""

    def __init__(self, pool: EnginePool, folder: Path) -> None:
        self.pool = pool
        self.folder = folder

    async def convert(self, hosts: dict[str, Path]) -> None:
        """Leaves the hosts' tables in the folder, and placeholders for their files."""
        for host, file in hosts.items():
            scratch = session_folder(self.folder.parent / f"map-{host}", "s")
            (scratch / f"{host}{tasks.XPLANE_SUFFIX}").symlink_to(file)
            await self.pool.run(tasks.tool_data, tasks.ToolTask(TRACE.name, (), scratch, (host,), "s"), what="map")
            for suffix in tasks.TRACE_SUFFIXES:
                os.link(scratch / f"{host}{suffix}", self.folder / f"{host}{suffix}")
            (self.folder / f"{host}{tasks.XPLANE_SUFFIX}").touch()

    async def ask(
        self, hosts: Sequence[str], max_bytes: int = 64 << 20, merged_tables: int = 8 << 20, **query: str
    ) -> tuple[RecordHeader, dict[str, Any]]:
        with TemporaryDirectory(dir=self.folder.parent) as scratch:
            return await self._ask(Path(scratch), hosts, max_bytes, merged_tables, query)

    async def _ask(
        self, scratch: Path, hosts: Sequence[str], max_bytes: int, merged_tables: int, query: dict[str, str]
    ) -> tuple[RecordHeader, dict[str, Any]]:
        folder, record = session_folder(scratch, "s"), scratch / "record"
        for file in self.folder.iterdir():
            os.link(file, folder / file.name)
        outputs = {host: folder / f"{host}.SSTABLE" for host in hosts} if len(hosts) > 1 else {}
        parameters = canonical_parameters(TRACE, {"resolution": "3640", **query})
        task = tasks.ToolTask(
            TRACE.name, parameters, folder, tuple(hosts), "s", record, saved=True, map_outputs=outputs
        )
        await self.pool.run(bounded_to, max_bytes, merged_tables, task, what="trace")
        found = Record(record.read_bytes())
        content: dict[str, Any] = json.loads(found.body("identity"))
        return found.header, content


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    pool = EnginePool(EngineLimits(processes=1))
    yield Engine(pool, session_folder(tmp_path / "all", "s"))
    await pool.close()


def timed(content: dict[str, Any]) -> set[tuple[Any, ...]]:
    return {
        (e["pid"], e.get("tid"), e["ts"], e.get("z"), e["name"])
        for e in content["traceEvents"]
        if "ts" in e and e["pid"] != 0
    }


async def test_a_trace_over_the_bound_is_thinned_with_a_note_and_zooming_in_shows_the_rest(
    engine: Engine, any_profile: Path
) -> None:
    await engine.convert({"host": any_profile})
    header, whole = await engine.ask(["host"])
    assert header.hidden_events == 0
    assert all(event["pid"] != 0 for event in whole["traceEvents"])
    fixed = header.size - len(json.dumps(timed_events(whole), separators=(",", ":")))
    bound = fixed + (header.size - fixed) // 3

    header, thinned = await engine.ask(["host"], max_bytes=bound)
    assert header.size <= bound
    assert timed(thinned) < timed(whole)
    assert header.hidden_events == len(timed_events(whole)) - len(timed_events(thinned)) > 0
    assert thinned["returnedEventsSize"] == whole["returnedEventsSize"] - header.hidden_events
    name, order, _, slice_ = thinned["traceEvents"][:4]
    assert name["args"]["name"] == slice_["name"]
    assert name["args"]["name"].startswith(f"⚠ {header.hidden_events:,} of {whole['returnedEventsSize']:,} events")
    assert "zoom in" in name["args"]["name"]
    assert order["args"]["sort_index"] == -1
    # The viewer asks again only of such a trace.
    assert thinned["filteredByVisibility"] is True

    hidden = sorted(timed(whole) - timed(thinned), key=lambda event: event[2])
    middle = hidden[len(hidden) // 2][2] / 1000
    window = {"start_time_ms": str(max(middle - 0.01, 0)), "end_time_ms": str(middle + 0.01)}
    _, zoomed = await engine.ask(["host"], max_bytes=bound, **window)
    assert hidden[len(hidden) // 2] in timed(zoomed)


def timed_events(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in content["traceEvents"] if "ts" in event and event["pid"] != 0]


async def test_hosts_that_are_converted_one_by_one_make_the_trace_that_xprof_merges(
    engine: Engine, any_profile: Path, cpu_session: Path
) -> None:
    hosts = {"one": any_profile, "two": next(cpu_session.glob("*.xplane.pb")), "three": any_profile}
    await engine.convert(hosts)
    for query in ({}, {"start_time_ms": "1.5", "end_time_ms": "40"}):
        _, merged = await engine.ask(list(hosts), **query)
        header, joined = await engine.ask(list(hosts), merged_tables=0, **query)
        assert header.hidden_events == 0
        # No event of these refers to a stack frame.
        assert not any("sf" in event for event in merged["traceEvents"])
        merged["stackFrames"] = {}
        assert same_answer(TRACE.name, json.dumps(joined).encode(), json.dumps(merged).encode()) is None


async def test_a_trace_of_several_hosts_over_the_bound_keeps_something_of_each(
    engine: Engine, any_profile: Path
) -> None:
    await engine.convert({"one": any_profile, "two": any_profile})
    full, whole = await engine.ask(["one", "two"])
    bound = full.size // 2
    header, thinned = await engine.ask(["one", "two"], max_bytes=bound, merged_tables=0)
    assert header.size <= bound
    assert header.hidden_events == len(timed_events(whole)) - len(timed_events(thinned)) > 0
    assert timed(thinned) < timed(whole)
    assert "open fewer hosts" in thinned["traceEvents"][0]["args"]["name"]
    assert {event["pid"] // 1000 for event in timed_events(thinned)} == {1, 2}
    names = {e["pid"]: e["args"]["name"] for e in thinned["traceEvents"] if e["name"] == "process_name"}
    assert {event["pid"] for event in timed_events(thinned)} <= names.keys()


async def test_a_window_from_small_blocks_is_the_window_from_the_whole_table(engine: Engine, any_profile: Path) -> None:
    await engine.convert({"host": any_profile})
    _, whole = await engine.ask(["host"])
    first, last = whole["fullTimespan"]
    draw = random.Random(7)
    windows = [(0.0, first / 2), (last + 1, last + 2), (first, last)]
    for _ in range(9):
        length = (last - first) * 10 ** draw.uniform(-6, 0)
        start = draw.uniform(first - length / 2, last - length / 2)
        windows.append((start, start + length))
    queries = [{"start_time_ms": str(start), "end_time_ms": str(end)} for start, end in windows]
    before = [(await engine.ask(["host"], **query))[1] for query in queries]
    await engine.pool.run(tasks.make_blocks, engine.folder, "host", what="blocks")
    for query, expected in zip(queries, before, strict=True):
        _, found = await engine.ask(["host"], **query)
        difference = same_answer(TRACE.name, json.dumps(found).encode(), json.dumps(expected).encode())
        assert difference is None, f"{query}: {difference}"
    # That the blocks were used shows when they are not whole.
    blocks = engine.folder / f"host{tasks.WINDOW_SUFFIXES[0]}"
    blocks.write_bytes(b"\0" * blocks.stat().st_size)
    with pytest.raises(ProfileError):
        await engine.ask(["host"], **queries[-1])


async def test_of_many_hosts_each_keeps_something(engine: Engine, cpu_session: Path) -> None:
    profile = next(cpu_session.glob("*.xplane.pb"))
    hosts = [f"host-{number:02}" for number in range(12)]
    await engine.convert({hosts[0]: profile})
    for host in hosts[1:]:
        for file in list(engine.folder.glob(f"{hosts[0]}.*")):
            os.link(file, engine.folder / file.name.replace(hosts[0], host))
    one, _ = await engine.ask(hosts[:1])
    header, thinned = await engine.ask(hosts, max_bytes=one.size * 3, merged_tables=0)
    assert one.size * 2 < header.size <= one.size * 3
    assert {event["pid"] // 1000 for event in timed_events(thinned)} == set(range(1, 13))


class OneFile:
    """A bucket with one file, which counts how often it is read."""

    uri = "gs://bucket"

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.file = StoredFile("gs://bucket/host.xplane.pb", len(data), 1.0, hashlib.md5(data).hexdigest(), "1")
        self.reads = 0

    async def list(self) -> AsyncIterator[Sequence[StoredFile | Skipped]]:
        yield [self.file]

    async def head(self, uri: str) -> StoredFile:
        return self.file

    async def checksum(self, file: StoredFile) -> Checksum | None:
        return None

    async def read(self, file: StoredFile, start: int = 0) -> AsyncGenerator[bytes, None]:
        self.reads += 1
        yield self.data[start:]


async def test_zooming_details_and_search_need_only_the_converted_trace(
    tmp_path: Path, any_profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_blocks, "WORTH_BYTES", 0)
    store = OneFile(any_profile.read_bytes())
    pool = EnginePool(EngineLimits(processes=1))
    parser = Parser(FileCache(tmp_path / "cache", 1 << 30, min_free_bytes=0), pool, lambda _: store)

    async def ask(**query: str) -> dict[str, Any]:
        parameters = canonical_parameters(TRACE, {"resolution": "3640", **query})
        job = ToolJob("s", "root", TRACE.name, parameters, (HostFile("host", store.file),), False)
        content: dict[str, Any] = json.loads(Record(await parser.tool_data(job)).body("identity"))
        return content

    try:
        whole = await ask()
        await parser.blocks.settle()
        async with parser.cache.open_entry(blocks_key(HostFile("host", store.file))) as blocks:
            assert blocks is not None
        assert store.reads == 1
        for copy in (tmp_path / "cache" / "files").iterdir():
            copy.unlink()
        events = sorted(timed_events(whole), key=lambda event: event["ts"])
        event = next(event for event in events[len(events) // 2 :] if event["ph"] == "X")
        at = event["ts"] / 1000
        zoomed = await ask(start_time_ms=str(at), end_time_ms=str(at + event["dur"] / 1000 + 1))
        assert event["name"] in {item["name"] for item in timed_events(zoomed)}
        for event in random.Random(8).sample([event for event in events if event["ph"] == "X"], 20):
            asked = {"start_time_ms": repr(event["ts"] / 1000), "duration_ms": repr(event["dur"] / 1000)}
            detail = await ask(event_name=event["name"], unique_id=str(event["args"].get("uid", 0)), **asked)
            assert [item["name"] for item in timed_events(detail)] == [event["name"]]
        searched = await ask(search_prefix=event["name"][:4])
        assert timed_events(searched)
        assert all(item["name"].startswith(event["name"][:4]) for item in timed_events(searched))
        assert store.reads == 1
    finally:
        await pool.close()
