"""The two servers that are compared, each as a context manager on a log folder of its own."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from hosting.free_ports import free_ports
from hosting.service_process import ServiceProcess

API = "/data/plugin/profile/"
READY_WITHIN = 90.0  # seconds


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that answers on loopback. Its memory is that of `pid` and everything below it."""

    name: str
    port: int
    pid: int


Starter = Callable[[Path, Path], AbstractContextManager[RunningServer]]
"""Starts a server on a log folder, with a fresh state folder of its own to use."""


@contextlib.contextmanager
def stock_server(logdir: Path, state: Path) -> Iterator[RunningServer]:
    """`xprof server` of this environment. It writes its caches beside the profiles in `logdir`."""
    state.mkdir(parents=True, exist_ok=True)
    port, grpc_port = free_ports(2)
    command = [str(Path(sys.executable).with_name("xprof")), "--logdir", str(logdir)]
    command += ["--port", str(port), "--grpc_port", str(grpc_port)]
    with (state / "stock.log").open("w") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_for_stock(process, port, state / "stock.log")
        yield RunningServer("stock", port, process.pid)
    finally:
        _stop_group(process)


@contextlib.contextmanager
def hosting_server(logdir: Path, state: Path) -> Iterator[RunningServer]:
    """`xprof-hosting serve` with its defaults."""
    state.mkdir(parents=True, exist_ok=True)
    arguments = ["--logdir", str(logdir), "--port", "0", "--state-dir", str(state / "state")]
    with ServiceProcess(arguments, log=state / "serve.log", ready_within=READY_WITHIN) as service:
        port = int(service.address.rstrip("/").rsplit(":", 1)[1])
        yield RunningServer("hosting", port, service.pid)


SERVERS: dict[str, Starter] = {"stock": stock_server, "hosting": hosting_server}


def _wait_for_stock(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
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
    raise RuntimeError(f"the stock server did not start:\n{log.read_text(errors='replace')[-2000:]}")


def _stop_group(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
            return
