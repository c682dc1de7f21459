"""What the engine is spared changes no answer: inspection without events, one parse for an overview, maps."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from benchmarks.same_answer import same_answer
from loaders.engines import tasks
from loaders.engines.pool import EngineLimits, EnginePool, session_folder
from loaders.records import Record
from tests.made_xspaces import add_events, events_space, inspected_spaces

Found = tuple[list[str], dict[str, bytes]]


@asynccontextmanager
async def engine() -> AsyncIterator[EnginePool]:
    pool = EnginePool(EngineLimits(processes=1))
    try:
        yield pool
    finally:
        await pool.close()


def _task(folder: Path, tool: str, hosts: dict[str, Path]) -> tasks.ToolTask:
    session = session_folder(folder, "s")
    for host, profile in hosts.items():
        (session / f"{host}{tasks.XPLANE_SUFFIX}").symlink_to(profile)
    return tasks.ToolTask(tool, (), session, tuple(hosts), "s", record=folder / "record")


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob(f"*{tasks.HLO_SUFFIX}")}


async def _inspections(pool: EnginePool, tmp_path: Path, profile: Path) -> tuple[Found, Found]:
    whole, spared = (_task(tmp_path / name, "tool_names", {"host": profile}) for name in ("whole", "spared"))
    names = await pool.run(tool_names_of_whole_files, whole, what="whole")
    found = await pool.run(tasks.inspect, spared, what="spared")
    assert sorted(found.modules) == sorted(name.removesuffix(tasks.HLO_SUFFIX) for name in _files(spared.folder))
    return (names, _files(whole.folder)), (list(found.tools), _files(spared.folder))


async def test_inspection_without_events_finds_the_same_in_real_profiles(tmp_path: Path, any_profile: Path) -> None:
    async with engine() as pool:
        whole, spared = await _inspections(pool, tmp_path, any_profile)
    assert whole[0] == spared[0]
    assert "overview_page" in whole[0]
    # A program's maps are written in the order of a hash map; the rest, so the bytes in all, is the same.
    assert {name: sorted(data) for name, data in whole[1].items()} == {
        name: sorted(data) for name, data in spared[1].items()
    }
    assert whole[1]


async def test_inspection_without_events_finds_the_same_in_made_profiles(tmp_path: Path) -> None:
    tools: dict[str, set[str]] = {}
    modules: dict[str, set[str]] = {}
    async with engine() as pool:
        for name, space in inspected_spaces().items():
            profile = tmp_path / f"{name}.xplane.pb"
            profile.write_bytes(space.SerializeToString())
            whole, spared = await _inspections(pool, tmp_path / name, profile)
            assert whole == spared, name
            tools[name], modules[name] = set(whole[0]), set(whole[1])
    # What is made does show what it was made for.
    assert {name for name in tools if "megascale_stats" in tools[name]} == {"MegaScale events"}
    assert {name for name in tools if "perf_counters" in tools[name]} == {
        "counters of a TPU",
        "counters of a SparseCore",
        "counters of the second TPU",
    }
    assert {name for name in tools if "kernel_stats" in tools[name]} == {"a GPU", "counters of a GPU"}
    assert modules["programs"] == {"jit_f(11).hlo_proto.pb", "jit_g(12).hlo_proto.pb"}
    assert modules["a large program"] == {"jit_h(11).hlo_proto.pb"}
    assert modules["a host"] == {"NO_MODULE.hlo_proto.pb"}


async def test_an_overview_that_parses_once_is_the_same(tmp_path: Path, any_profile: Path) -> None:
    await _same_overview(tmp_path, any_profile)


@pytest.mark.parametrize(
    ("event", "stats", "requests"),
    [
        ("SessionRun", {"_r": 1}, True),
        ("BatchingSessionRun", {}, True),
        ("of the user's own", {"_r": -1}, True),
        ("ModelServerRequest_1", {"_r": 1}, True),
        ("ProcessBatch", {"_r": 1}, False),
        ("step", {"_r": 1, "step_num": 3}, False),
    ],
)
async def test_an_overview_with_requests_is_the_same(
    tmp_path: Path, event: str, stats: dict[str, int], requests: bool
) -> None:
    profile = tmp_path / "made.xplane.pb"
    profile.write_bytes(events_space("/host:CPU", event, stats).SerializeToString())
    overview = await _same_overview(tmp_path, profile)
    assert bool(_latencies(overview)) is requests


async def _same_overview(tmp_path: Path, profile: Path) -> Any:
    """The overview as xprof makes it in one call, after checking that ours equals it, fresh and from kept op stats."""
    async with engine() as pool:
        whole = _task(tmp_path / "whole", "overview_page", {"host": profile})
        expected = await pool.run(xprofs_own_tool_data, whole, what="whole")
        ours = _task(tmp_path / "ours", "overview_page", {"host": profile})
        await pool.run(tasks.tool_data, ours, what="ours")
        again = _task(tmp_path / "again", "overview_page", {"host": profile})
        for name in (tasks.COMBINED_OP_STATS, tasks.OP_STATS_FACTS):
            (ours.folder / name).rename(again.folder / name)
        await pool.run(tasks.tool_data, replace(again, saved=True), what="again")
    for task in (ours, again):
        assert task.record is not None
        assert same_answer("overview_page", Record(task.record.read_bytes()).body("identity"), expected) is None
    return json.loads(expected)


async def test_hosts_without_requests_add_nothing_to_an_overview_of_several(tmp_path: Path) -> None:
    serving = events_space("/host:CPU", "SessionRun", {"_r": 1})
    idle = events_space("/host:CPU", "step", {"_r": 1})
    add_events(idle, "/device:TPU:0", "fusion", {"flops": 3})
    profiles = {"idle": tmp_path / "idle.pb", "serving": tmp_path / "serving.pb"}
    for name, space in (("idle", idle), ("serving", serving)):
        profiles[name].write_bytes(space.SerializeToString())
    answers = []
    async with engine() as pool:
        outputs: dict[str, Path] = {}
        for host, profile in profiles.items():
            task = _task(tmp_path / f"map-{host}", "overview_page", {host: profile})
            await pool.run(tasks.map_op_stats, task, what="map")
            outputs[host] = task.folder / f"{host}{tasks.OP_STATS_SUFFIX}"
            facts = json.loads((task.folder / tasks.OP_STATS_FACTS).read_bytes())
            assert facts == {"is_training": False, "may_have_requests": host == "serving"}
        for name in ("whole", "spared"):
            task = replace(_task(tmp_path / name, "overview_page", profiles), map_outputs=outputs)
            if name == "spared":
                placeholder = task.folder / f"idle{tasks.XPLANE_SUFFIX}"
                placeholder.unlink()
                placeholder.touch()
            await pool.run(tasks.tool_data, task, what=name)
            assert task.record is not None
            answers.append(Record(task.record.read_bytes()).body("identity"))
    assert same_answer("overview_page", answers[0], answers[1]) is None
    assert _latencies(json.loads(answers[0]))


async def test_a_map_is_what_xprofs_worker_makes(tmp_path: Path, any_profile: Path) -> None:
    async with engine() as pool:
        theirs = _task(tmp_path / "theirs", "overview_page", {"host": any_profile})
        ours = _task(tmp_path / "ours", "overview_page", {"host": any_profile})
        await pool.run(map_by_xprofs_worker, theirs, what="theirs")
        await pool.run(tasks.map_op_stats, ours, what="ours")
        contents = [
            await pool.run(op_stats, task.folder / f"host{tasks.OP_STATS_SUFFIX}", what="a look")
            for task in (theirs, ours)
        ]
    assert same_answer("op stats", *contents) is None


def _latencies(overview: Any) -> list[Any]:
    """The rows of the overview's table of latencies."""
    [table] = [table for table in overview if "latency" in json.dumps(table.get("cols", "")).lower()]
    rows: list[Any] = table.get("rows", [])
    return rows


def tool_names_of_whole_files(task: tasks.ToolTask) -> list[str]:
    """Runs in the engine process: xprof's inspection on the files as they are."""
    from xprof.convert import _pywrap_profiler_plugin

    paths = [task.folder / f"{host}{tasks.XPLANE_SUFFIX}" for host in task.hosts]
    raw, success = _pywrap_profiler_plugin.xspace_to_tools_data(paths, "tool_names")
    assert success
    return raw.decode().split(",")  # type: ignore[no-any-return]


def xprofs_own_tool_data(task: tasks.ToolTask) -> bytes:
    """Runs in the engine process: one tool in one call of xprof."""
    from loaders.engines import xprof

    return xprof._convert(task)[0]


def map_by_xprofs_worker(task: tasks.ToolTask) -> None:
    """Runs in the engine process: the map of the task's host through xprof's own worker."""
    import socket

    import grpc
    from xprof.convert import _pywrap_profiler_plugin

    from loaders.engines.worker_protocol import METHOD, WorkerProfileDataRequest, WorkerProfileDataResponse

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    _pywrap_profiler_plugin.start_grpc_server(port, 1)
    request: Any = WorkerProfileDataRequest()
    request.origin_request.session_id = str(task.folder / f"{task.hosts[0]}{tasks.XPLANE_SUFFIX}")
    request.origin_request.tool_name = task.tool
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        channel.unary_unary(
            METHOD,
            request_serializer=WorkerProfileDataRequest.SerializeToString,
            response_deserializer=WorkerProfileDataResponse.FromString,
        )(request, timeout=60, wait_for_ready=True)


def op_stats(path: Path) -> bytes:
    """Runs in the engine process: op stats as JSON."""
    from xprof.protobuf import op_stats_pb2

    return json.dumps(MessageToDict(op_stats_pb2.OpStats.FromString(path.read_bytes()))).encode()
