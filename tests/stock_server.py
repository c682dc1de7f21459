"""The stock `xprof server`, run on a copy of what it is to show, since it writes beside the profiles."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def free_port() -> int:
    """A port of loopback that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def stock_server(logdir: Path, log: Path) -> Iterator[str]:
    """Runs `xprof --logdir` and gives its address, with a slash at the end."""
    port = free_port()
    command = [str(Path(sys.executable).parent / "xprof"), "--logdir", str(logdir), "--port", str(port)]
    with log.open("w") as output:
        process = subprocess.Popen([*command, "--grpc_port", str(free_port())], stdout=output, stderr=output)
    address = f"http://127.0.0.1:{port}/"
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{address}data/plugin/profile/version", timeout=5).read()
                break
            except OSError:
                assert process.poll() is None, f"xprof ended: {log.read_text()[-2000:]}"
                assert time.monotonic() < deadline, "xprof did not answer within a minute"
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
