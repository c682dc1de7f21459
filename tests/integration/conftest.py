"""One service on one tree of sessions for all integration tests, and the stock server on a copy of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.servers import stock_server
from hosting.service_process import ServiceProcess
from tests.conftest import PROFILES
from tests.session_folder import add_session

API = "data/plugin/profile/"


@pytest.fixture(scope="session")
def log_root(tmp_path_factory: pytest.TempPathFactory, cpu_session: Path) -> Path:
    """Sessions of every kind that is at hand: one host, two, four, and with bad files among good ones."""
    root = tmp_path_factory.mktemp("log_root")
    cpu = {path.name.removesuffix(".xplane.pb"): path for path in sorted(cpu_session.glob("*.xplane.pb"))}
    good = next(iter(cpu.values()))
    add_session(root, "cpu", "two", cpu)
    add_session(root, "cpu", "one", dict(list(cpu.items())[:1]))
    for kind, profile in PROFILES.items():
        if profile.is_file():
            add_session(root, kind, "one", {profile.name.removesuffix(".xplane.pb"): profile})
            add_session(root, kind, "two", {f"{kind}-host-{i}": profile for i in range(2)})
            add_session(root, kind, "four", {f"{kind}-host-{i}": profile for i in range(4)})
    bad = add_session(root, "bad", "mixed", {"good-0": good, "good-1": good})
    add_session(root, "bad", "pair", {"good-0": good, "good-1": good})
    (bad / "truncated.xplane.pb").write_bytes(good.read_bytes()[: good.stat().st_size // 2])
    for name, content in (("empty", b""), ("text", b'{"traceEvents": []}')):
        folder = add_session(root, "bad", name, {})
        (folder / "host.xplane.pb").write_bytes(content)
    folder = add_session(root, "bad", "cut", {})
    (folder / "host.xplane.pb").write_bytes(good.read_bytes()[:-7])
    folder = add_session(root, "bad", "huge", {})
    with (folder / "host.xplane.pb").open("wb") as file:
        file.truncate(1 << 31)
    return root


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The service's state folder."""
    return tmp_path_factory.mktemp("service_state")


@pytest.fixture(scope="session")
def logs(state: Path) -> Path:
    """The service's log file."""
    return state / "logs" / "xprof-hosting.jsonl"


@pytest.fixture(scope="session")
def service(log_root: Path, state: Path) -> Iterator[ServiceProcess]:
    """The service with two gateways and two shards on the tree. Sessions of more than 10 MiB are split by host."""
    arguments = ["--logdir", str(log_root), "--port", "0", "--state-dir", str(state), "--shards", "2"]
    arguments += ["--gateways", "2", "--shard-budget-mib", "10", "--prewarm", "off"]
    with ServiceProcess(arguments, log=state / "service.log") as running:
        yield running


@pytest.fixture(scope="session")
def client(service: ServiceProcess) -> Iterator[httpx.Client]:
    """A client of the service."""
    with httpx.Client(base_url=service.address, timeout=120) as session:
        yield session


@pytest.fixture(scope="session")
def stock(log_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of the stock server on a copy of the tree, less the bad sessions."""
    folder = tmp_path_factory.mktemp("stock")
    shutil.copytree(log_root, folder / "root", ignore=shutil.ignore_patterns("bad"))
    with (
        stock_server(folder / "root", folder / "own") as server,
        httpx.Client(base_url=f"http://127.0.0.1:{server.port}/", timeout=120) as session,
    ):
        yield session
