"""An engine that crashes, hangs, or takes too much: its request is told so, and the next one works.

Without Ray: the gateway's application over one parser, whose limits each test sets.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from benchmarks.generate import generate_session
from hosting.assets import AssetLibrary
from hosting.gateway_app import create_app
from hosting.replies import RecordReply, as_array
from hosting.services import Services
from hosting.settings import Settings
from loaders.catalog import Catalog
from loaders.engines import tasks
from loaders.engines.pool import EngineLimits, EnginePool, session_folder
from loaders.errors import EngineCrashed, ProfileError
from loaders.file_cache import FileCache
from loaders.jobs import ToolJob
from loaders.log_roots import LogRoot
from loaders.parser import Parser
from loaders.result_store import ResultStore
from loaders.sessions import Snapshot
from loaders.stores import StoreOptions, open_store
from loaders.tickets import Ticket, current_ticket

DATA = "/data/plugin/profile/data"


class OneParser:
    """A single shard's work in this process."""

    def __init__(self, parser: Parser, results: ResultStore) -> None:
        self.parser = parser
        self.results = results

    async def tool_data(self, job: ToolJob) -> RecordReply:
        key = job.key(tasks.ENGINE)
        try:
            data = await self.parser.tool_data(job)
            await self.results.put(key, data)
        except ProfileError as problem:
            return RecordReply(key, problem=problem)
        return RecordReply(key, record=as_array(data))

    async def self_test(self) -> None:
        return None

    async def metrics(self) -> dict[str, str]:
        return {}


class OneCatalog:
    """A catalog without the replica around it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def latest(self) -> Snapshot:
        return self._snapshot

    async def snapshot(self) -> Snapshot:
        return self._snapshot


@asynccontextmanager
async def gateway(root: Path, state: Path, bounds: EngineLimits) -> AsyncIterator[tuple[httpx.AsyncClient, EnginePool]]:
    """The gateway over a parser with these limits."""
    uri = f"file://{root}"
    catalog = Catalog([LogRoot("root", uri)], StoreOptions())
    await catalog.start()
    snapshot = await catalog.ready()
    await catalog.stop()
    pool = EnginePool(bounds)
    store = open_store(uri, StoreOptions())
    results = ResultStore(f"file://{state / 'results'}", StoreOptions())
    parser = Parser(FileCache(state / "cache", 1 << 30), pool, lambda _: store)
    services = Services(
        Settings(logdir=(f"root={root}",)),
        AssetLibrary.prepare(state / "assets"),
        OneCatalog(snapshot),
        OneParser(parser, results),
        results,
    )
    transport = httpx.ASGITransport(create_app(services))
    async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=120) as client:
        yield client, pool
    await pool.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, cpu_session: Path) -> Path:
    """A small session and one whose trace takes a second or more."""
    folder = tmp_path_factory.mktemp("limits")
    source = next(cpu_session.glob("*.xplane.pb"))
    generate_session(source, folder / "small", ["host"], None, "s")
    generate_session(source, folder / "big", ["host"], 40, "s")
    return folder


async def test_an_engine_over_its_deadline_is_a_504_and_the_next_request_works(root: Path, tmp_path: Path) -> None:
    async with gateway(root, tmp_path, EngineLimits(processes=1, deadline=0.9)) as (client, _):
        answer = await client.get(DATA, params={"run": "big/s", "tag": "trace_viewer@", "host": "host"})
        assert answer.status_code == 504, answer.text
        for word in ("trace_viewer@", "big/s", "host", "0.9 s"):
            assert word in answer.text
        answer = await client.get(DATA, params={"run": "small/s", "tag": "trace_viewer@", "host": "host"})
        assert answer.status_code == 200


async def test_an_engine_over_its_memory_is_a_507_and_the_next_request_works(root: Path, tmp_path: Path) -> None:
    async with gateway(root, tmp_path, EngineLimits(processes=1, memory_bytes=240 << 20)) as (client, _):
        answer = await client.get(DATA, params={"run": "big/s", "tag": "trace_viewer@", "host": "host"})
        assert answer.status_code == 507, answer.text
        assert "0.2 GiB" in answer.text
        assert "big/s" in answer.text
        answer = await client.get(DATA, params={"run": "small/s", "tag": "op_profile", "host": "host"})
        assert answer.status_code == 200


async def test_a_file_written_to_while_it_is_parsed_gives_no_answer_that_is_kept(root: Path, tmp_path: Path) -> None:
    query = {"run": "big/s", "tag": "trace_viewer@", "host": "host"}
    async with gateway(root, tmp_path, EngineLimits(processes=1)) as (client, pool):
        request = asyncio.ensure_future(client.get(DATA, params=query))
        while not pool.running:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        os.utime(root / "big" / "plugins" / "profile" / "s" / "host.xplane.pb")
        answer = await request
        assert answer.status_code == 503, answer.text
        assert "changed" in answer.text
        assert answer.headers["retry-after"]
        assert not list((tmp_path / "results").glob("??/*"))
        assert (await client.get(DATA, params=query)).status_code == 200


async def test_a_full_disk_is_a_507_and_nothing_half_written_is_used(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = {"run": "small/s", "tag": "op_profile", "host": "host"}
    async with gateway(root, tmp_path, EngineLimits(processes=1)) as (client, _):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "mkdir", _full(Path.mkdir))
            answer = await client.get(DATA, params=query)
            assert answer.status_code == 507, answer.text
            assert "full" in answer.text
        answer = await client.get(DATA, params=query)
        assert answer.status_code == 200


async def test_a_disk_that_fills_in_the_engine_is_a_507(tmp_path: Path) -> None:
    pool = EnginePool(EngineLimits(processes=1))
    with pytest.raises(ProfileError) as failure:
        await pool.run(no_space_left, what="a tool of session 's'")
    assert failure.value.status == 507
    assert "session 's'" in str(failure.value)
    assert await pool.run(tasks.self_test, session_folder(tmp_path, "s"), what="self-test") > 0
    await pool.close()


async def test_a_crash_is_told_with_its_signal_and_a_kill_from_outside_is_tried_again(tmp_path: Path) -> None:
    pool = EnginePool(EngineLimits(processes=2))
    with pytest.raises(EngineCrashed, match="signal SIGSEGV"):
        await pool.run(crash, what="a tool")
    marker = tmp_path / "first"
    assert await pool.run(die_once, marker, what="a tool") == "second"
    with pytest.raises(EngineCrashed, match="SIGKILL"):
        await pool.run(die_always, what="a tool")
    assert await pool.run(tasks.self_test, session_folder(tmp_path, "s"), what="self-test") > 0
    await pool.close()


async def test_processes_that_die_while_idle_cost_no_request(tmp_path: Path) -> None:
    pool = EnginePool(EngineLimits(processes=2))
    for round_ in range(3):
        await asyncio.gather(*(pool.run(time.sleep, 0.1, what="a tool") for _ in range(2)))
        server = psutil.Process(await pool.run(os.getppid, what="a tool"))
        for process in [*server.children(), *([server] if round_ == 1 else [])]:
            process.kill()
        await asyncio.sleep(0.5)
        folder = session_folder(tmp_path / str(round_), "s")
        assert await pool.run(tasks.self_test, folder, what="self-test", deadline=20) > 0
    await pool.close()


async def test_a_stopped_process_does_not_outlast_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loaders.engines.pool._START_SECONDS", 0.5)
    pool = EnginePool(EngineLimits(processes=1, deadline=1.0))
    pid = await pool.run(os.getpid, what="a tool")
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ProfileError) as failure:
        await pool.run(os.getpid, what="a tool")
    assert failure.value.status == 504
    assert await pool.run(tasks.self_test, session_folder(tmp_path, "s"), what="self-test", deadline=20) > 0
    await pool.close()


async def test_a_pool_that_is_replaced_does_not_hold_up_what_ran_beside_the_stuck_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loaders.engines.pool._START_SECONDS", 0.5)
    pool = EnginePool(EngineLimits(processes=2, deadline=20.0))
    pids = await asyncio.gather(*(pool.run(slow_pid, what="a tool") for _ in range(2)))
    assert len(set(pids)) == 2
    os.kill(pids[0], signal.SIGSTOP)
    stuck, neighbour = (pool.run(slow_pid, what="a tool", deadline=deadline) for deadline in (1.0, 15.0))
    began = time.monotonic()
    results = await asyncio.gather(stuck, neighbour, return_exceptions=True)
    assert time.monotonic() - began < 10
    answered = [result for result in results if isinstance(result, int)]
    told = [result for result in results if isinstance(result, ProfileError)]
    assert len(answered) + len(told) == 2
    assert all(problem.status == 504 for problem in told)
    assert await pool.run(tasks.self_test, session_folder(tmp_path, "s"), what="self-test", deadline=20) > 0
    await pool.close()


async def test_a_persons_call_stops_prewarming_that_holds_the_only_process(tmp_path: Path) -> None:
    pool = EnginePool(EngineLimits(processes=1))
    marker = tmp_path / "begun"

    async def prewarm() -> str:
        current_ticket.set(Ticket(wanted=True))
        return await pool.run(slow_at_first, marker, what="a prewarm")

    warming = asyncio.ensure_future(prewarm())
    while not marker.exists():
        await asyncio.sleep(0.02)
    began = time.monotonic()
    await pool.run(os.getpid, what="a tool")
    assert time.monotonic() - began < 10
    assert await warming == "second time"
    await pool.close()


async def test_engine_processes_are_replaced_after_a_number_of_tasks() -> None:
    pool = EnginePool(EngineLimits(processes=1, tasks_per_process=2))
    pids = [await pool.run(os.getpid, what="a tool") for _ in range(4)]
    assert len(set(pids)) == 2
    await pool.close()


async def test_an_engine_process_has_no_credentials_and_no_network_but_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    pool = EnginePool(EngineLimits(processes=1))
    names, interfaces = await pool.run(environment, what="a look around")
    assert "AWS_SECRET_ACCESS_KEY" not in names
    assert "HTTPS_PROXY" not in names
    assert "PATH" in names
    if os.geteuid() == 0:
        assert interfaces == ["lo"]
    await pool.close()


async def test_engine_processes_end_with_the_pool() -> None:
    pool = EnginePool(EngineLimits(processes=2))
    pid = await pool.run(os.getpid, what="a tool")
    await pool.close()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def _full(real: Callable[..., None]) -> Callable[..., None]:
    def mkdir(self: Path, *args: object, **options: object) -> None:
        if "scratch" in str(self):
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        real(self, *args, **options)

    return mkdir


def no_space_left() -> None:
    """What a write to a full disk raises."""
    raise OSError(errno.ENOSPC, "No space left on device")


def crash() -> None:
    """What native code does on a bad pointer."""
    os.kill(os.getpid(), signal.SIGSEGV)


def die_once(marker: Path) -> str:
    """Is killed the first time."""
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "second"


def slow_pid() -> int:
    time.sleep(0.3)
    return os.getpid()


def slow_at_first(marker: Path) -> str:
    if marker.exists():
        return "second time"
    marker.touch()
    time.sleep(60)
    return "never"


def die_always() -> None:
    """Is killed every time."""
    os.kill(os.getpid(), signal.SIGKILL)


def environment() -> tuple[list[str], list[str]]:
    """The names of the variables and network interfaces that a process sees."""
    import socket

    return sorted(os.environ), [name for _, name in socket.if_nameindex()]
