"""The bench measures real servers, and goes on when one of them fails."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from benchmarks.measure import Comparison, Plan, measure_memory
from benchmarks.servers import SUBJECTS, RunningServer, Subject, stock_aggregator
from benchmarks.viewers import View, Viewer, views_per_second
from benchmarks.workloads import Workload, link_session


@pytest.fixture
def workload(cpu_session: Path, tmp_path: Path) -> Workload:
    """The two hosts of the CPU capture."""
    folder = tmp_path / "workload"
    shutil.copytree(cpu_session, folder)
    return Workload("CPU 2x1 MB", folder, folder / "demo-host-0.xplane.pb")


def test_the_aggregators_two_workers_do_the_maps(workload: Workload, tmp_path: Path) -> None:
    session = link_session(workload, tmp_path / "logs", "s")
    with stock_aggregator(tmp_path / "logs", tmp_path / "own") as server:
        assert len(server.pids) == 3
        with Viewer(server) as viewer:
            viewer.open(View(session, "overview_page", workload.hosts))
    logs = [(tmp_path / "own" / f"worker-{number}.log").read_text() for number in range(2)]
    for host in workload.hosts:
        assert sum(f"{host}.xplane.pb" in log and "finished successfully" in log for log in logs) == 1
    assert all("finished successfully" in log for log in logs)


def test_servers_are_compared_and_one_that_fails_says_why_in_place_of_figures(
    workload: Workload, tmp_path: Path
) -> None:
    plan = Plan(2, 3, 5.0, (1, 8), 0.5, 30.0, time.monotonic() + 100)
    subjects = {name: SUBJECTS[name] for name in ("stock", "aggregator")}
    subjects["broken"] = Subject(_refusing)
    with Comparison(workload, ("trace_viewer@",), subjects, tmp_path / "place", plan) as comparison:
        found = {speed.server: speed for speed in comparison.measure("trace_viewer@")}
    assert not (tmp_path / "place").exists()
    assert found["broken"].problems == {"cold": "did not start"}
    for name in ("stock", "aggregator"):
        speed = found[name]
        assert speed.problems == {}
        assert (len(speed.cold), len(speed.warm), len(speed.zoom)) == (2, 3, 7)
        assert set(speed.rates) == {1, 8}
        assert min(speed.rates.values()) > 1
        assert speed.size > 10_000


def test_when_the_time_is_over_nothing_half_done_is_told(workload: Workload, tmp_path: Path) -> None:
    plan = Plan(2, 3, 5.0, (1, 8), 0.5, 30.0, time.monotonic() - 1)
    with Comparison(workload, ("op_profile",), {"stock": SUBJECTS["stock"]}, tmp_path / "place", plan) as comparison:
        assert list(comparison.measure("op_profile")) == []


def test_memory_is_measured_on_a_server_of_its_own(workload: Workload, tmp_path: Path) -> None:
    memory = measure_memory(workload, "stock", SUBJECTS["stock"], 2, tmp_path / "place")
    assert memory.idle > 50 << 20
    # Samples, so that work of a fraction of a second may hardly show.
    assert memory.growth > 0
    assert memory.idle < memory.largest <= memory.idle + memory.growth


def test_a_server_that_does_not_answer_in_time_is_ended(tmp_path: Path) -> None:
    deaf = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{deaf}; time.sleep(60)"], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stdout is not None
    with process, process.stdout:
        server = RunningServer("deaf", int(process.stdout.readline()), process.pid)
        rate, problem = views_per_second(server, 3, View("s", "op_profile", ("h",)), 0.2, 0.5)
        assert (rate, problem) == (0.0, "not all answered in 0.7 s")
        assert process.wait(10) == -signal.SIGKILL


def _refusing(logdir: Path, state: Path) -> AbstractContextManager[RunningServer]:
    raise RuntimeError("cannot start")
