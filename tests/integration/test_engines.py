"""Two engines behind one interface: what is trusted comes from xprof-rs, everything else from xprof, in one request."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx
import psutil
import pytest

from benchmarks.parity import compare, small_sessions, verdicts
from benchmarks.same_answer import same_answer
from hosting.serve import serve_forever
from hosting.settings import Settings
from hosting.shard import accelerated_engine
from loaders.engines import tasks
from loaders.engines.accelerated import AcceleratedEngine, AcceleratedLimits
from loaders.engines.pool import EngineLimits, EnginePool
from loaders.engines.trust import TrustTable, accelerated_binary, trusted
from loaders.errors import BadParameter, InvalidProfile
from loaders.file_cache import FileCache
from loaders.jobs import ToolJob
from loaders.parser import Parser
from loaders.records import Record
from loaders.sessions import HostFile
from loaders.stored_file import StoredFile
from loaders.stores import StoreOptions, open_store
from loaders.tools import INSPECTION, TOOLS, canonical_parameters
from tests.conftest import PROFILES

API = "data/plugin/profile/"
pytestmark = pytest.mark.skipif(accelerated_binary() is None, reason="xprof-rs is not installed")

Trusts = Callable[..., bool]


@dataclass
class Bench:
    """A parser with both engines."""

    parser: Parser
    engine: AcceleratedEngine
    outcomes: list[str]
    """What the accelerated engine did not answer."""

    async def open(self, tool: str, hosts: Mapping[str, Path], **query: str) -> Record:
        known = TOOLS.get(tool, INSPECTION)
        files = tuple(HostFile(host, StoredFile.from_stat(path, path.stat())) for host, path in hosts.items())
        job = ToolJob("run/session", "root", tool, canonical_parameters(known, query), files, len(files) > 1)
        return Record(await self.parser.tool_data(job))


@asynccontextmanager
async def bench(state: Path, trusts: Trusts = trusted, bounds: AcceleratedLimits | None = None) -> AsyncIterator[Bench]:
    binary = accelerated_binary()
    assert binary is not None
    cache = FileCache(state / "cache", 1 << 30)
    pool = EnginePool(EngineLimits(processes=1))
    store = open_store("file:///", StoreOptions())
    outcomes: list[str] = []
    engine = AcceleratedEngine(
        binary, cache.scratch, "xprof-rs x", trusts=trusts, bounds=bounds, report=outcomes.append
    )
    try:
        yield Bench(Parser(cache, pool, lambda _: store, engine), engine, outcomes)
    finally:
        await engine.close()
        await pool.close()
    assert not list((state / "cache" / "scratch").iterdir())


def everything(*_: object) -> bool:
    """Trusts it with everything."""
    return True


@pytest.fixture
def cpu(cpu_session: Path, tmp_path: Path) -> dict[str, Path]:
    """One host's file, captured from the CPU, in a folder with nothing else in it."""
    folder = tmp_path / "profile"
    folder.mkdir()
    path = folder / "demo-host-0.xplane.pb"
    path.write_bytes((cpu_session / path.name).read_bytes())
    return {"demo-host-0": path}


def test_the_service_lets_the_trusted_engine_answer_and_says_so(
    client: httpx.Client, stock: httpx.Client, gpu_profile: Path
) -> None:
    for run, tool in (("gpu/one", "op_profile"), ("gpu/one", "kernel_stats"), ("gpu/two", "kernel_stats")):
        host = client.get(f"{API}hosts", params={"run": run, "tag": tool}).json()[0]["hostname"]
        query = {"run": run, "tag": tool, "host": host, "group_by": "program"}
        ours = client.get(f"{API}data", params=query)
        assert ours.headers["x-xprof-hosting-engine"] == "xprof-rs 0.1.3", (run, tool)
        theirs = stock.get(f"{API}data", params={**query, "use_saved_result": "false"})
        assert same_answer(tool, ours.content, theirs.content, in_order=True) is None
        encoded = client.get(f"{API}data", params=query, headers={"accept-encoding": "identity"})
        assert encoded.content == ours.content
    page = client.get(f"{API}data", params={"run": "gpu/one", "tag": "overview_page"})
    assert page.headers["x-xprof-hosting-engine"] == tasks.ENGINE
    counts = client.get("metrics").text
    assert 'xprof_hosting_engine_results_total{engine="xprof-rs",outcome="answered"' in counts
    assert 'xprof_hosting_engine_results_total{engine="xprof",outcome="answered"' in counts


async def test_a_session_is_inspected_by_the_reference_which_reads_no_events_for_it(
    cpu: dict[str, Path], tmp_path: Path
) -> None:
    async with bench(tmp_path) as both:
        found = await both.open("tool_names", cpu)
        assert found.header.engine == tasks.ENGINE
        assert both.engine.pid is None
        # The programs are the reference's to show, too.
        module = json.loads(found.body("identity"))["modules"][0]
        graph = await both.open("graph_viewer", cpu, module_name=module, type="short_txt")
        assert graph.header.engine == tasks.ENGINE


async def test_a_file_that_it_refuses_is_the_references_in_the_same_request_and_not_tried_again(
    tpu_profile: Path, tmp_path: Path
) -> None:
    hosts = {"host": tpu_profile}
    async with bench(tmp_path, everything) as both:
        answer = await both.open("op_profile", hosts)
        assert answer.header.engine == tasks.ENGINE
        assert both.outcomes == ["refused"]
        # It would answer this one with an empty table.
        assert (await both.open("inference_profile", hosts)).header.engine == tasks.ENGINE
        assert both.outcomes == ["refused"]


async def test_a_set_with_a_refused_file_leaves_the_others_to_it(
    tpu_profile: Path, cpu: dict[str, Path], tmp_path: Path
) -> None:
    async with bench(tmp_path, everything) as both:
        mixed = await both.open("framework_op_stats", {**cpu, "tpu": tpu_profile})
        assert mixed.header.engine == tasks.ENGINE
        assert (await both.open("framework_op_stats", cpu)).header.engine == "xprof-rs x"
        assert both.outcomes == ["refused"]


async def test_a_tool_that_it_does_not_answer_does_not_cost_the_file_its_others(
    cpu: dict[str, Path], tmp_path: Path
) -> None:
    async with bench(tmp_path, everything) as both:
        # No such module there; the reference engine says so, too, but in our words.
        for _ in range(2):
            with pytest.raises(Exception, match="There is no module 'nothing'"):
                await both.open("graph_viewer", cpu, module_name="nothing", type="short_txt")
        assert both.outcomes == ["refused"]
        assert (await both.open("framework_op_stats", cpu)).header.engine == "xprof-rs x"


async def test_a_killed_process_is_replaced_without_costing_a_request(cpu: dict[str, Path], tmp_path: Path) -> None:
    async with bench(tmp_path, everything) as both:
        await both.open("hlo_stats", cpu)
        first = both.engine.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert (await both.open("framework_op_stats", cpu)).header.engine == "xprof-rs x"
        assert both.engine.pid != first
        assert both.outcomes == []


async def test_a_process_over_its_deadline_is_ended_and_the_reference_answers(
    cpu: dict[str, Path], tmp_path: Path
) -> None:
    async with bench(tmp_path, everything, AcceleratedLimits(deadline=0.5)) as both:
        await both.open("hlo_stats", cpu)
        pid = both.engine.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        assert (await both.open("framework_op_stats", cpu)).header.engine == tasks.ENGINE
        assert both.outcomes == ["failed"]
        assert both.engine.pid is None
        assert not psutil.pid_exists(pid)
        # Not tried again: it may be the file's fault.
        assert (await both.open("kernel_stats", cpu)).header.engine == tasks.ENGINE
        assert both.engine.pid is None


async def test_memory_is_bounded_while_it_works_and_afterwards(cpu: dict[str, Path], tmp_path: Path) -> None:
    size = sum(path.stat().st_size for path in cpu.values())
    async with bench(tmp_path, everything, AcceleratedLimits(memory_bytes=2 * size)) as both:
        assert (await both.open("framework_op_stats", cpu)).header.engine == tasks.ENGINE
        assert (both.outcomes, both.engine.pid) == ([], None)
    async with bench(tmp_path, everything, AcceleratedLimits(several_bytes=2 * size)) as both:
        hosts = {**cpu, "other": next(iter(cpu.values()))}
        assert (await both.open("framework_op_stats", hosts)).header.engine == tasks.ENGINE
        assert (await both.open("framework_op_stats", cpu)).header.engine == "xprof-rs x"
    async with bench(tmp_path, everything, AcceleratedLimits(idle_bytes=1)) as both:
        assert (await both.open("framework_op_stats", cpu)).header.engine == "xprof-rs x"
        assert both.engine.pid is None
        assert (await both.open("kernel_stats", cpu)).header.engine == "xprof-rs x"


async def test_bad_files_are_told_in_the_references_words(cpu: dict[str, Path], tmp_path: Path) -> None:
    [(host, path)] = cpu.items()
    data = path.read_bytes()
    for content in (data[:-7], b"", b'{"traceEvents": []}'):
        path.write_bytes(content)
        messages = []
        for trusts in (everything, lambda *_: False):
            async with bench(tmp_path, trusts) as both:
                with pytest.raises(InvalidProfile) as failure:
                    await both.open("op_profile", {host: path})
                messages.append(str(failure.value))
                assert (both.outcomes, both.engine.pid) == ([], None)
        assert messages[0] == messages[1]


async def test_a_bad_host_is_left_out_as_ever(cpu: dict[str, Path], tmp_path: Path) -> None:
    bad = tmp_path / "bad.xplane.pb"
    bad.write_bytes(next(iter(cpu.values())).read_bytes()[:-7])
    async with bench(tmp_path, everything) as both:
        answer = await both.open("kernel_stats", {**cpu, "bad": bad})
        assert list(answer.header.left_out) == ["bad"]
        assert answer.header.engine == tasks.ENGINE


async def test_the_process_has_no_credentials_and_no_network_and_leaves_nothing(
    cpu: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    async with bench(tmp_path, everything) as both:
        await both.open("hlo_stats", cpu)
        pid = both.engine.pid
        assert pid is not None
        process = psutil.Process(pid)
        parent = process.parent()
        assert parent is not None
        assert "AWS_SECRET_ACCESS_KEY" not in process.environ()
        assert "PATH" in process.environ()
        if os.geteuid() == 0:
            assert (Path("/proc") / str(pid) / "ns" / "net").readlink() != Path("/proc/self/ns/net").readlink()
        [path] = cpu.values()
        assert list(path.parent.iterdir()) == [path]
    assert not process.is_running()
    assert not parent.is_running()


async def test_links_are_kept_for_so_many_sets_only(cpu: dict[str, Path], tmp_path: Path) -> None:
    [path] = cpu.values()
    async with bench(tmp_path, everything, AcceleratedLimits(sets=2)) as both:
        for number in range(4):
            copy = tmp_path / f"copy-{number}.xplane.pb"
            copy.write_bytes(path.read_bytes())
            assert (await both.open("hlo_stats", {"host": copy})).header.engine == "xprof-rs x"
        [scratch] = [entry for entry in (tmp_path / "cache" / "scratch").iterdir() if entry.is_dir()]
        assert len(list(scratch.iterdir())) == 2


def test_the_reference_alone_is_used_where_it_is_chosen(tmp_path: Path) -> None:
    choices: list[tuple[Literal["auto", "xprof", "xprof-rs"], bool]] = [("xprof", False), ("auto", True)]
    for choice, used in [*choices, ("xprof-rs", True)]:
        settings = Settings(logdir=(f"root={tmp_path}",), state_dir=tmp_path / choice, engine=choice)
        engine = accelerated_engine(settings, FileCache(tmp_path / "cache", 1 << 20))
        assert (engine is not None) == used
        if engine is not None:
            assert engine.takes("graph_viewer", (), ["identity"], 1) == (choice == "xprof-rs")


def test_a_missing_engine_is_named_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hosting.serve.accelerated_binary", lambda: None)
    settings = Settings(logdir=(str(tmp_path),), state_dir=tmp_path / "state", engine="xprof-rs")
    with pytest.raises(BadParameter, match=r"pip install 'xprof-hosting\[accelerated\]'"):
        serve_forever(settings)


@pytest.mark.slow
def test_what_the_table_claims_holds(cpu_session: Path, tmp_path: Path) -> None:
    gpu = PROFILES["gpu"]
    (tmp_path / "root").mkdir()
    small_sessions(tmp_path / "root", cpu_session, gpu if gpu.is_file() else None)
    table = TrustTable.read()
    claimed = [(tool, case) for tool, cases in table.tools.items() for case in cases if cases[case].trusted]
    found = verdicts(compare(tmp_path / "root", tmp_path, {tool for tool, _ in claimed}))
    checked = [(tool, case) for tool, case in claimed if case in found.get(tool, {})]
    assert ("pod_viewer", "CPU, several hosts") in checked
    assert {(tool, case): found[tool][case].difference for tool, case in checked} == dict.fromkeys(checked)
