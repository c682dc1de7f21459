"""Measures stored answers through each front on one small session: the median of one connection after the other, and
requests per second of 8 and of 64 connections.

python -m benchmarks.front [PROFILE.xplane.pb] [--fronts direct:1 direct:2 haproxy:2 python:1] [--seconds 3]
"""

from __future__ import annotations

import argparse
import http.client
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from benchmarks.generate import generate_session
from benchmarks.http_load import load
from hosting.demo import capture_demo_session
from hosting.service_process import ServiceProcess

API: Final = "/data/plugin/profile/"
_SETTLING_SECONDS: Final = 5
TOOLS: Final = ("op_profile", "overview_page", "trace_viewer@")


def main() -> None:
    """Prints a line per front and address."""
    # So that the services end, too, when this is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path, nargs="?", help="captured from JAX on the CPU unless given")
    parser.add_argument(
        "--fronts",
        nargs="+",
        default=["direct:1", "direct:2", "haproxy:1", "haproxy:2", "python:1"],
        help="each with its number of gateways",
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        profile = given.profile or next(capture_demo_session(root / "captured").glob("*.xplane.pb"))
        generate_session(profile, root / "logs" / "run", ["host"], None, "session")
        for front in given.fronts:
            name, _, gateways = front.partition(":")
            arguments = ["--logdir", str(root / "logs"), "--port", "0", "--state-dir", str(root / "state")]
            arguments += ["--front", name, "--gateways", gateways or "1"]
            with ServiceProcess(arguments, log=root / "service.log") as service:
                # HAProxy closes its connections when it hears of the second gateway.
                time.sleep(_SETTLING_SECONDS)
                measure(service.address, front, given.seconds)


def measure(address: str, front: str, seconds: float) -> None:
    """Prints a line per address of the service."""
    paths = {"healthz": "/healthz"}
    paths |= {tool: f"{API}data?run=run/session&tag={tool}&host=host" for tool in TOOLS}
    tag = entity_tag(address, paths[TOOLS[-1]])
    for name, path in [*paths.items(), ("304", paths[TOOLS[-1]])]:
        headers = {"If-None-Match": tag} if name == "304" else {}
        load(address, path, connections=8, seconds=1, headers=headers)
        alone = load(address, path, connections=1, seconds=seconds, headers=headers)
        few, many = (load(address, path, connections=n, seconds=seconds, headers=headers) for n in (8, 64))
        print(
            f"{front:10} {name:14} {alone.size:>9,} bytes  p50 {alone.median * 1000:6.2f} ms  "
            f"8: {few.per_second:6,.0f} /s  64: {many.per_second:6,.0f} /s, p50 {many.median * 1000:6.1f} ms",
            flush=True,
        )


def entity_tag(address: str, path: str) -> str:
    """The tag of the gzipped answer, which is made when it is not there yet."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=120)
    connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.headers["ETag"]


if __name__ == "__main__":
    main()
