"""What the bench asks for, in which order, and how it makes a store seem far away."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.bench import Bench, Unit, units
from benchmarks.latency_proxy import LatencyProxy
from benchmarks.measure import Plan
from benchmarks.memory import PeakMemory, tree_pss
from benchmarks.results_file import Results
from benchmarks.viewers import ALL_HOSTS, View
from benchmarks.windows import time_range, zoom_parameters
from benchmarks.workloads import Workload, host_files, link_session

NOW = Plan(1, 1, 1.0, (1,), 1.0, 1.0, time.monotonic() + 1000)


def _workload(folder: Path, name: str, hosts: int) -> Workload:
    folder.mkdir(parents=True)
    for number in range(hosts):
        (folder / f"host-{number}.xplane.pb").write_bytes(b"x")
    (folder / "NO_MODULE.hlo_proto.pb").touch()
    return Workload(name, folder, folder / "host-0.xplane.pb")


def test_views_ask_as_the_ui_does() -> None:
    hosts = ("a", "b")
    assert View("s", "overview_page", hosts).parameters["host"] == "ALL_HOSTS"
    assert View("s", "overview_page", hosts[:1]).parameters["host"] == "a"
    one, every = View("s", "trace_viewer@", hosts), View("s", f"trace_viewer@{ALL_HOSTS}", hosts)
    assert "hosts" not in one.parameters
    assert (every.tag, every.parameters["hosts"], every.parameters["tag"]) == ("trace_viewer@", "a,b", "trace_viewer@")
    zoomed = View("s", "trace_viewer@", hosts, {"replace_model": "false"}).parameters
    assert (zoomed["replace_model"], zoomed["resolution"]) == ("false", "3640")


def test_windows_lie_in_the_trace_and_are_three_times_what_is_shown() -> None:
    body = b'{"traceEvents":[{"ph":"X","ts":2000000.5,"dur":1},{"ts": 1e6},{"ph":"M","name":"ts"}]}'
    assert time_range(body) == (1000.0, 2000.0005)
    windows = zoom_parameters(1000.0, 2000.0)
    ranges = [(float(window["start_time_ms"]), float(window["end_time_ms"])) for window in windows]
    assert all(1000.0 <= begin < end <= 2000.0 for begin, end in ranges)
    assert ranges[0] == (1025.0, 1775.0)
    assert ranges[2] == pytest.approx((1400.0 - 1500 / 64, 1400.0 + 1500 / 64))
    assert len(set(ranges)) == len(ranges)
    assert {window["replace_model"] for window in windows} == {"false"}
    with pytest.raises(ValueError, match="no events"):
        time_range(b"{}")


def test_links_are_of_the_profiles_alone(tmp_path: Path) -> None:
    workload = _workload(tmp_path / "w", "GPU 4x40 MB", 2)
    assert workload.hosts == ("host-0", "host-1")
    assert link_session(workload, tmp_path / "logs", "s") == "GPU_4x40_MB/s"
    linked = tmp_path / "logs" / "GPU_4x40_MB" / "plugins" / "profile" / "s"
    assert [path.name for path in linked.iterdir()] == [path.name for path in host_files(linked)]
    assert (linked / "host-0.xplane.pb").samefile(workload.source)


def test_everything_is_planned_once_and_all_hosts_traces_come_after_the_rest(tmp_path: Path) -> None:
    one, four = _workload(tmp_path / "1", "GPU 1x79 MB", 1), _workload(tmp_path / "4", "TPU 4x40 MB", 4)
    planned = units([one, four])
    assert len(set(planned)) == len(planned)
    # The memory that a target is about comes with its workload.
    assert [(unit.workload.name, unit.tools[:1], unit.viewers) for unit in planned] == [
        ("GPU 1x79 MB", ("overview_page",), 0),
        ("TPU 4x40 MB", ("overview_page",), 0),
        ("TPU 4x40 MB", (), 8),
        ("TPU 4x40 MB", (f"trace_viewer@{ALL_HOSTS}",), 0),
        ("GPU 1x79 MB", (), 8),
        ("GPU 1x79 MB", (), 1),
        ("TPU 4x40 MB", (), 1),
    ]


@pytest.mark.parametrize(
    ("only", "wanted"),
    [
        ([], True),
        (["TPU 4x40"], True),
        (["gpu 1x79/overview_page", "tpu 4x40/overview_page"], True),
        (["/overview_page"], True),
        (["/op_profile"], False),
        (["GPU"], False),
        (["TPU 4x40/memory"], False),
    ],
)
def test_only_chooses_workloads_and_tools(only: list[str], wanted: bool) -> None:
    bench = Bench(Results(), {}, only, False, NOW)
    assert bench.wants("TPU 4x40 MB", "overview_page") is wanted


def test_a_unit_of_which_everything_is_known_is_not_measured_again(tmp_path: Path) -> None:
    bench = Bench(Results(), {}, [], True, NOW)
    bench.run([Unit(_workload(tmp_path / "1", "GPU 1x79 MB", 1), ("op_profile",))], tmp_path / "place")
    assert not (tmp_path / "place").exists()


@pytest.fixture
def echo() -> Any:
    """A server that answers with what it gets, in 8 MB on top."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                while data := connection.recv(1 << 16):
                    connection.sendall(data + b"." * (8 << 20))

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def test_a_far_store_answers_whole_and_each_request_late_by_its_latency_once(echo: int) -> None:
    with (
        LatencyProxy(echo, 0.2) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as connection,
    ):
        for _ in range(2):
            started = time.monotonic()
            connection.sendall(b"hello")
            got = b""
            while len(got) < 5 + (8 << 20):
                got += connection.recv(1 << 20)
            assert got[:6] == b"hello."
            assert 0.2 <= time.monotonic() - started < 2.0
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


def test_memory_is_that_of_all_processes_and_of_the_largest() -> None:
    hold = "import time; block = b'x' * {size}; print('ready', flush=True); time.sleep(60)"
    processes = [
        subprocess.Popen([sys.executable, "-c", hold.format(size=megabytes << 20)], stdout=subprocess.PIPE)
        for megabytes in (30, 90)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        pids = [process.pid for process in processes]
        total, largest = tree_pss(pids)
        assert largest > 90 << 20
        assert total > largest + (30 << 20)
        with PeakMemory(pids) as meter:
            time.sleep(0.3)
        assert meter.peak == pytest.approx(total, rel=0.1)
        assert meter.largest == pytest.approx(largest, rel=0.1)
        assert not meter.exhausted
        assert all(psutil.pid_exists(pid) for pid in pids)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
