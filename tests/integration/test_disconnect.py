"""Clients that go before their answer is there: nothing is waited for on their behalf any longer."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from hosting.service_process import READY_LINE
from tests.session_folder import add_session

API = "/data/plugin/profile/"
ROOT = Path(__file__).parent.parent.parent


class Waiting:
    """A service whose shard never answers."""

    def __init__(self, address: str, state: Path, errors: Path) -> None:
        self.url = httpx.URL(address)
        self._state = state
        self._errors = errors

    def ask(self, path: str) -> socket.socket:
        """A connection on which a request was sent."""
        connection = socket.create_connection((self.url.host, self.url.port or 80))
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {self.url.netloc.decode()}\r\n\r\n".encode())
        return connection

    def notes(self) -> list[str]:
        path = self._state / "notes"
        return path.read_text().splitlines() if path.exists() else []

    def requests(self, status: int) -> list[str]:
        """The paths that were answered with this status, by the log."""
        lines = [json.loads(line) for line in (self._state / "logs/xprof-hosting.jsonl").read_text().splitlines()]
        return [line["path"] for line in lines if line["message"] == "request" and line["status"] == status]

    def complaints(self) -> list[str]:
        """What was said on standard error besides log lines, and log lines of errors."""
        lines = [line for line in self._errors.read_text().splitlines() if line and line != "Stopping…"]
        return [line for line in lines if not line.startswith("{") or json.loads(line)["level"] == "ERROR"]


@pytest.fixture(scope="module", params=["direct", "python"])
def waiting(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cpu_session: Path
) -> Iterator[Waiting]:
    folder = tmp_path_factory.mktemp("waiting")
    add_session(folder / "logs", "run", "s", {"host": next(cpu_session.glob("*.xplane.pb"))})
    command = [sys.executable, str(ROOT / "tests/integration/waiting_service.py"), "--logdir", str(folder / "logs")]
    command += ["--port", "0", "--state-dir", str(folder / "state"), "--front", request.param, "--gateways", "1"]
    with (folder / "errors").open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        found = READY_LINE.search(process.stdout.readline())
        assert found, (folder / "errors").read_text()[-3000:]
        yield Waiting(found[1], folder / "state", folder / "errors")
    finally:
        process.terminate()
        process.wait(30)


def until(condition: Callable[[], bool], within: float = 10.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {within:g} s"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("path", "tool"),
    [
        (f"{API}data?run=run/s&tag=overview_page", "overview_page"),
        (f"{API}data_csv?run=run/s&tag=kernel_stats", "kernel_stats"),
        (f"{API}run_tools?run=run/s", "tool_names"),
        ("/v1/sessions/run/s", "tool_names"),
    ],
)
def test_a_client_that_goes_cancels_what_a_shard_does_for_it(waiting: Waiting, path: str, tool: str) -> None:
    before = len(waiting.notes())
    connection = waiting.ask(path)
    until(lambda: waiting.notes()[before:] == [f"{tool} began"])
    time.sleep(0.2)
    assert len(waiting.notes()) == before + 1
    connection.close()
    until(lambda: waiting.notes()[before:] == [f"{tool} began", f"{tool} was cancelled"])
    until(lambda: path.partition("?")[0] in waiting.requests(499))
    assert httpx.get(waiting.url.join("/healthz")).status_code == 200
    assert waiting.complaints() == []


def test_the_call_for_a_result_is_cancelled_when_the_last_who_waits_for_it_has_gone(waiting: Waiting) -> None:
    before = len(waiting.notes())
    with waiting.ask(f"{API}data?run=run/s&tag=op_profile") as stays:
        with waiting.ask(f"{API}data?run=run/s&tag=op_profile"):
            until(lambda: waiting.notes()[before:] == ["op_profile began"])
            time.sleep(0.3)
        stays.settimeout(0.5)
        with pytest.raises(TimeoutError):
            stays.recv(1)
        # One call for both, which goes on for the one who stays.
        assert waiting.notes()[before:] == ["op_profile began"]
    until(lambda: waiting.notes()[before:] == ["op_profile began", "op_profile was cancelled"])
