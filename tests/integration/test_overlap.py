"""Downloads and parses of a session overlap, and nobody waits for files that their tool does not need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path

import pytest

from loaders.engines.pool import EngineLimits, EnginePool
from loaders.file_cache import FileCache
from loaders.jobs import ToolJob, plan_job
from loaders.parser import Parser
from loaders.records import Record
from loaders.sessions import HostFile, Session
from loaders.stored_file import Checksum, Skipped, StoredFile
from loaders.tools import TOOLS


class GatedStore:
    """Files of a folder as if in a bucket; each waits for its gate before its last byte."""

    uri = "gs://bucket"

    def __init__(self, folder: Path) -> None:
        self.content = {f"{self.uri}/{path.name}": path.read_bytes() for path in sorted(folder.glob("*.xplane.pb"))}
        self.gates = {uri: asyncio.Event() for uri in self.content}
        self.begun: list[str] = []

    def files(self) -> list[StoredFile]:
        return [StoredFile(uri, len(data), 1.0, "etag", "1") for uri, data in self.content.items()]

    async def list(self) -> AsyncIterator[Sequence[StoredFile | Skipped]]:
        yield self.files()

    async def head(self, uri: str) -> StoredFile:
        return next(file for file in self.files() if file.uri == uri)

    async def checksum(self, file: StoredFile) -> Checksum | None:
        return None

    async def read(self, file: StoredFile, start: int = 0) -> AsyncGenerator[bytes, None]:
        self.begun.append(file.uri)
        data = self.content[file.uri]
        yield data[start:-1]
        await self.gates[file.uri].wait()
        yield data[-1:]


def jobs(store: GatedStore, tool: str, host: str | None = None) -> ToolJob:
    hosts = tuple(HostFile(file.uri.rsplit("/", 1)[1].removesuffix(".xplane.pb"), file) for file in store.files())
    session = Session("run/s", "root", "gs://bucket/s", hosts, 1.0, True)
    return plan_job(session, TOOLS[tool], (), host, None)


@pytest.fixture
async def parser(tmp_path: Path, cpu_session: Path) -> AsyncIterator[tuple[Parser, GatedStore]]:
    """A parser on the two hosts of the CPU capture."""
    store = GatedStore(cpu_session)
    pool = EnginePool(EngineLimits(processes=2))
    yield Parser(FileCache(tmp_path / "cache", 1 << 30), pool, lambda _: store), store
    await pool.close()


async def test_a_tool_of_one_host_does_not_wait_for_another_hosts_file(parser: tuple[Parser, GatedStore]) -> None:
    made, store = parser
    first, second = store.gates
    everything = asyncio.ensure_future(made.tool_data(jobs(store, "overview_page")))
    store.gates[first].set()
    one = await asyncio.wait_for(made.tool_data(jobs(store, "trace_viewer@", "demo-host-0")), 60)
    assert b"traceEvents" in Record(one).body("identity")
    assert not everything.done()
    store.gates[second].set()
    await asyncio.wait_for(everything, 60)


async def test_downloads_overlap_and_one_host_is_parsed_while_another_arrives(
    parser: tuple[Parser, GatedStore],
) -> None:
    made, store = parser
    first, second = store.gates
    job = jobs(store, "overview_page")
    running = asyncio.ensure_future(made.tool_data(job))
    while len(store.begun) < 2:
        await asyncio.sleep(0.01)
    store.gates[first].set()
    deadline = asyncio.get_running_loop().time() + 60
    while not await made.derived.has_map(job.family, job.hosts[0]):
        assert asyncio.get_running_loop().time() < deadline, "the first host must be mapped while the second arrives"
        await asyncio.sleep(0.05)
    assert not running.done()
    store.gates[second].set()
    await asyncio.wait_for(running, 60)
