"""Measures the largest process of the service while a session of many large hosts is opened.

python -m benchmarks.bound [PROFILE.xplane.pb ...] [--hosts 16] [--megabytes 80] [--shards 1 2] [--viewers 4]

Opens the session's tools, its overview and every host's trace, and prints after each the largest resident size that any
single process of the service has had, and exits 1 if one was above the bound of 3 GB.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from benchmarks.generate import SUFFIX, generate_session
from benchmarks.workloads import GPU, TPU
from hosting.service_process import ServiceProcess

API = "data/plugin/profile/"
BOUND = 3e9  # bytes
INTERVAL = 0.1  # seconds between two looks at the processes
TIMEOUT = 3600.0  # seconds for one answer
_KIB = 1024


@dataclass(slots=True)
class Largest:
    """The largest process seen."""

    bytes: int = 0
    name: str = ""


@contextlib.contextmanager
def largest_process(pid: int) -> Iterator[Largest]:
    """Watches a process and everything below it; the largest resident size is the kernel's own note of the peak."""
    found = Largest()
    done = threading.Event()

    def look() -> None:
        with contextlib.suppress(psutil.Error):
            for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
                with contextlib.suppress(psutil.Error, OSError):
                    peak = _peak(process.pid)
                    if peak > found.bytes:
                        found.bytes, found.name = peak, _name(process)

    def watch() -> None:
        while not done.wait(INTERVAL):
            look()

    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        # Starts the kernel's note anew.
        with contextlib.suppress(OSError):
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()
        look()


def make_session(source: Path, root: Path, hosts: int, megabytes: float) -> list[str]:
    """Writes the session `run/s` with one file under the names of all hosts, and returns these."""
    folder = generate_session(source, root / "run", ["host-00"], megabytes, "s")
    names = [f"host-{number:02}" for number in range(hosts)]
    for name in names[1:]:
        os.link(folder / f"host-00{SUFFIX}", folder / f"{name}{SUFFIX}")
    return names


def measure(root: Path, state: Path, hosts: list[str], shards: int, viewers: int) -> int:
    """Prints a line per step and returns the largest size in bytes."""
    largest = 0
    arguments = ["--logdir", str(root), "--port", "0", "--state-dir", str(state), "--shards", str(shards)]
    state.mkdir(parents=True)
    with (
        ServiceProcess(arguments, log=state / "log", ready_within=180) as service,
        httpx.Client(base_url=service.address, timeout=TIMEOUT) as client,
    ):
        while "run/s" not in client.get(f"{API}runs").json():
            time.sleep(0.2)

        def open_tool(tool: str, host: str) -> None:
            parameters = {"run": "run/s", "tag": tool, "host": host, "resolution": "3640"}
            client.get(f"{API}data", params=parameters).raise_for_status()

        def tools() -> None:
            client.get(f"{API}run_tools", params={"run": "run/s"}).raise_for_status()

        def overview() -> None:
            open_tool("overview_page", "ALL_HOSTS" if len(hosts) > 1 else hosts[0])

        def traces() -> None:
            with ThreadPoolExecutor(viewers) as pool:
                list(pool.map(lambda host: open_tool("trace_viewer@", host), hosts))

        for name, step in (("run_tools", tools), ("overview_page", overview), ("trace_viewer@ of each", traces)):
            with largest_process(service.pid) as found:
                began = time.perf_counter()
                step()
                seconds = time.perf_counter() - began
            print(f"  {name:24} {seconds:7.1f} s   largest {found.bytes / 1e9:5.2f} GB   {found.name}", flush=True)
            largest = max(largest, found.bytes)
    return largest


def _peak(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * _KIB
    return 0


def _name(process: psutil.Process) -> str:
    words = process.cmdline()
    return "engine process" if any("forkserver" in word for word in words) else " ".join(words)[:60]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profiles", type=Path, nargs="*", help="the shared TPU and GPU profiles unless given")
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--megabytes", type=float, default=80)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--viewers", type=int, default=4, help="traces opened at once")
    parser.add_argument("--folder", type=Path, help="where to work; some GB")
    options = parser.parse_args()
    largest = 0
    for profile in options.profiles or [TPU, GPU]:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            root = Path(folder) / "logs"
            hosts = make_session(profile, root, options.hosts, options.megabytes)
            size = next(root.rglob(f"*{SUFFIX}")).stat().st_size / 1e6
            for shards in options.shards:
                print(f"{profile.name}: {len(hosts)} hosts of {size:.0f} MB, {shards} shards", flush=True)
                state = Path(folder) / f"state-{shards}"
                largest = max(largest, measure(root, state, hosts, shards, options.viewers))
                shutil.rmtree(state)
    print(f"The largest process had {largest / 1e9:.2f} GB; the bound is {BOUND / 1e9:g} GB.")
    sys.exit(largest > BOUND)


if __name__ == "__main__":
    main()
