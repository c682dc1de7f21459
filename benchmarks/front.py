"""Measures warm requests through both fronts, Ray Serve's Python proxy and its HAProxy, on one small session.

python -m benchmarks.front [PROFILE.xplane.pb]
"""

from __future__ import annotations

import argparse
import http.client
import statistics
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.generate import generate_session
from hosting.demo import capture_demo_session
from hosting.service_process import ServiceProcess

API = "/data/plugin/profile/"
REQUESTS = 200
WARM_UP = 30


def measure(address: str, path: str) -> tuple[int, float]:
    """The answer's bytes and the median of its times in ms, one request after the other on one connection."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    times, size = [], 0
    for _ in range(WARM_UP + REQUESTS):
        began = time.perf_counter()
        connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
        size = len(connection.getresponse().read())
        times.append((time.perf_counter() - began) * 1000)
    connection.close()
    return size, statistics.median(times[WARM_UP:])


def main() -> None:
    """Prints a line per address with both fronts' medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path, nargs="?", help="captured from JAX on the CPU unless given")
    profile = parser.parse_args().profile
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if profile is None:
            profile = next(capture_demo_session(root / "captured").glob("*.xplane.pb"))
        generate_session(profile, root / "logs" / "run", ["host"], None, "session")
        paths = ["/healthz"]
        paths += [f"{API}data?run=run/session&tag={tool}&host=host" for tool in ("op_profile", "trace_viewer@")]
        found = {}
        for front in ("python", "haproxy"):
            arguments = ["--logdir", str(root / "logs"), "--port", "0", "--state-dir", str(root / front)]
            with ServiceProcess([*arguments, "--front", front], log=root / f"{front}.log") as service:
                found[front] = [measure(service.address, path) for path in paths]
        for path, python, haproxy in zip(paths, found["python"], found["haproxy"], strict=True):
            print(f"{path:70} {python[0]:>9,} bytes  python {python[1]:6.2f} ms  haproxy {haproxy[1]:6.2f} ms")


if __name__ == "__main__":
    main()
