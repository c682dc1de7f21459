"""What is made before anybody asks, and what is not made because nobody waits for it any more."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.generate import generate_session
from hosting.service_process import ServiceProcess
from tests.session_folder import add_session

API = "data/plugin/profile/"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the service's log root and state are."""
    return tmp_path_factory.mktemp("one_process")


@pytest.fixture(scope="module")
def one_process(folder: Path, cpu_session: Path) -> Iterator[httpx.Client]:
    """A client of a service with one engine process, with an old session on whose files it works for some seconds."""
    source = next(cpu_session.glob("*.xplane.pb"))
    session = generate_session(source, folder / "root" / "slow", ["a", "b", "c"], 16, "s")
    for file in session.iterdir():
        # Too old to be prewarmed.
        os.utime(file, (0, 0))
    arguments = ["--logdir", str(folder / "root"), "--port", "0", "--state-dir", str(folder / "state")]
    arguments += ["--shards", "1", "--engine-processes", "1", "--prewarm", "all"]
    with (
        ServiceProcess(arguments, log=folder / "log") as service,
        httpx.Client(base_url=service.address, timeout=60) as client,
    ):
        yield client


def until(condition: Callable[[], bool], within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {within:g} s"
        time.sleep(0.1)


def counted(client: httpx.Client, name: str, label: str) -> float:
    found = re.findall(rf"^{name}{{.*{label}.*}} (\S+)", client.get("metrics").text, re.MULTILINE)
    return sum(float(count) for count in found)


def test_a_waiting_request_whose_client_has_gone_is_dropped_from_the_queue(
    one_process: httpx.Client, folder: Path
) -> None:
    busy = threading.Thread(
        target=lambda: one_process.get(f"{API}data", params={"run": "slow/s", "tag": "trace_viewer@", "host": "a"})
    )
    busy.start()
    time.sleep(0.3)
    address = one_process.base_url
    with socket.create_connection((address.host, address.port or 80)) as impatient:
        path = f"/{API}data?run=slow/s&tag=trace_viewer@&host=b"
        impatient.sendall(f"GET {path} HTTP/1.1\r\nHost: {address.host}\r\n\r\n".encode())
        time.sleep(0.5)
        assert busy.is_alive(), "the only engine process must be at work while the other request waits"
    busy.join(60)
    until(lambda: counted(one_process, "xprof_hosting_dropped_total", 'tool="trace_viewer@"') == 1)
    lines = [json.loads(line) for line in (folder / "state/logs/xprof-hosting.jsonl").read_text().splitlines()]
    made = [str(line["work"]) for line in lines if line["message"] == "made a result"]
    assert any("host 'a'" in work for work in made)
    assert not any("trace_viewer@" in work and "host 'b'" in work for work in made)
    again = one_process.get(f"{API}data", params={"run": "slow/s", "tag": "trace_viewer@", "host": "b"})
    assert again.status_code == 200


def test_a_session_that_arrives_is_made_before_anybody_opens_it(
    one_process: httpx.Client, folder: Path, cpu_session: Path
) -> None:
    hosts = {path.name.removesuffix(".xplane.pb"): path for path in sorted(cpu_session.glob("*.xplane.pb"))}
    add_session(folder / "root", "run", "new", hosts)

    def warm() -> bool:
        lines = (folder / "state/logs/xprof-hosting.jsonl").read_text().splitlines()
        return any(
            line["message"] == "prewarmed a session" and line["session"] == "run/new" for line in map(json.loads, lines)
        )

    until(warm)
    assert counted(one_process, "xprof_hosting_prewarmed_total", 'outcome="done"') >= 8
    misses = counted(one_process, "xprof_hosting_results_total", 'outcome="miss"')
    tools = one_process.get(f"{API}run_tools", params={"run": "run/new"}).json()
    for tool in tools:
        if tool in ("graph_viewer", "memory_viewer"):
            continue
        offered = one_process.get(f"{API}hosts", params={"run": "run/new", "tag": tool}).json()
        query = {"run": "run/new", "tag": tool, "host": offered[0]["hostname"], "resolution": "3640"}
        assert one_process.get(f"{API}data", params=query).status_code in (200, 404), tool
    assert counted(one_process, "xprof_hosting_results_total", 'outcome="miss"') == misses
