"""Gateways that take HTTP themselves, on one socket that outlives them."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from benchmarks.generate import generate_session
from hosting.service_process import ServiceProcess
from tests.session_folder import add_session

API = "data/plugin/profile/"
OVERVIEW = {"run": "run/s", "tag": "overview_page"}


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory, cpu_session: Path) -> list[str]:
    root = tmp_path_factory.mktemp("direct_front")
    source = next(cpu_session.glob("*.xplane.pb"))
    add_session(root / "logs", "run", "s", {"host": source})
    generate_session(source, root / "logs" / "slow", ["host"], 16, "s")
    return ["--logdir", str(root / "logs"), "--port", "0"]


@pytest.fixture(scope="module")
def service(arguments: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    state = tmp_path_factory.mktemp("state")
    options = ["--state-dir", str(state), "--gateways", "2", "--log-level", "debug"]
    with ServiceProcess([*arguments, *options], log=state / "log") as running:
        until_answering(running.address, 2)
        yield running


def until_answering(address: str, count: int) -> None:
    """Waits until so many gateways have a share in the metrics."""
    deadline = time.monotonic() + 20
    while True:
        names = {part.split('"')[0] for part in httpx.get(f"{address}metrics").text.split('replica="gateway-')[1:]}
        if len(names) == count:
            return
        assert time.monotonic() < deadline, names
        time.sleep(0.1)


def gateways(service: ServiceProcess) -> list[psutil.Process]:
    """The gateways' processes: those that have connections to the service's port, or listen there."""
    port = httpx.URL(service.address).port
    family = psutil.Process(service.pid).children(recursive=True)
    return [
        process
        for process in family
        if any(found.laddr and found.laddr.port == port for found in process.net_connections("tcp"))
    ]


def test_no_proxy_stands_between_and_both_gateways_have_the_one_socket(service: ServiceProcess) -> None:
    family = [psutil.Process(service.pid), *psutil.Process(service.pid).children(recursive=True)]
    assert not [process for process in family if "Proxy" in " ".join(process.cmdline())]
    assert len(gateways(service)) == 2
    answer = httpx.get(f"{service.address}healthz", headers={"x-request-id": "mine"})
    assert answer.headers.get_list("x-request-id") == ["mine"]
    assert len(httpx.get(f"{service.address}healthz").headers.get_list("x-request-id")) == 1
    assert "server" not in answer.headers


def test_one_connection_carries_many_requests(service: ServiceProcess) -> None:
    url = httpx.URL(service.address)
    with socket.create_connection((url.host, url.port or 80), timeout=10) as connection:
        request = f"GET /healthz HTTP/1.1\r\nHost: {url.netloc.decode()}\r\n\r\n".encode()
        connection.sendall(request * 3)
        got = b""
        while got.count(b"200 OK") < 3:
            part = connection.recv(4096)
            assert part, got
            got += part


def test_while_a_killed_gateway_is_replaced_every_new_connection_is_answered(service: ServiceProcess) -> None:
    assert httpx.get(f"{service.address}{API}data", params=OVERVIEW, timeout=60).status_code == 200
    gateways(service)[0].kill()
    for _ in range(20):
        assert httpx.get(f"{service.address}{API}data", params=OVERVIEW, timeout=20).status_code == 200
    until_answering(service.address, 2)
    # With none left, connections wait for the next one.
    for process in gateways(service):
        process.kill()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: httpx.get(f"{service.address}healthz", timeout=30), range(4)))
    assert [answer.status_code for answer in answers] == [200] * 4


def test_a_stopping_service_finishes_what_it_is_asked_and_takes_nothing_new(
    arguments: list[str], tmp_path: Path
) -> None:
    options = ["--state-dir", str(tmp_path / "state")]
    asked: Future[httpx.Response] = Future()
    with ServiceProcess([*arguments, *options], log=tmp_path / "log") as service:
        httpx.get(f"{service.address}{API}runs")
        address = f"{service.address}{API}data"

        def ask() -> None:
            try:
                asked.set_result(httpx.get(address, params={**OVERVIEW, "run": "slow/s"}, timeout=60))
            except httpx.HTTPError as error:
                asked.set_exception(error)

        threading.Thread(target=ask).start()
        time.sleep(0.15)
        assert not asked.done()
        idle = httpx.Client(base_url=service.address)
        idle.get("healthz")
        began = time.monotonic()
        service.stop()
        assert time.monotonic() - began < 15
    answer = asked.result(1)
    assert answer.status_code == 200
    assert len(answer.content) > 1000
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{service.address}healthz")
    lines = [json.loads(line) for line in (tmp_path / "state/logs/xprof-hosting.jsonl").read_text().splitlines()]
    assert [line for line in lines if line["level"] == "ERROR"] == []
