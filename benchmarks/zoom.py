"""Measures what the trace viewer asks while somebody looks around in one host's large trace, through a running service.

    python -m benchmarks.zoom [--server stock] [--times 15] [FOLDER ...]

A FOLDER holds one host's XPlane file; without any, an 81 MB TPU and a 79 MB GPU profile are made from the shared ones.
Every request is for a place that nobody looked at before: its answer is made, not found. A window is three times what
is on the screen; the viewer asks anew when what it has is eight times as long, so windows go down in steps of eight.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from benchmarks.report import text
from benchmarks.servers import API, SUBJECTS
from benchmarks.workloads import Workload, link_session, make_workloads

SHARES = (1 / 3, 1 / 24, 1 / 200, 1 / 1_500, 1 / 12_000)
RESOLUTION = "3640"
Query = dict[str, str]


class NotAnswered(RuntimeError):
    """A status other than 200."""


class Timeline:
    """One host's trace viewer."""

    def __init__(self, port: int, run: str, host: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._about = {"run": run, "tag": "trace_viewer@", "host": host, "hosts": host, "full_dma": "false"}

    def ask(self, query: Query) -> tuple[float, bytes]:
        """Seconds until the answer was here, and its JSON."""
        path = f"{API}data?{urlencode({**self._about, **query})}"
        began = time.perf_counter()
        self._connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
        answer = self._connection.getresponse()
        body = answer.read()
        seconds = time.perf_counter() - began
        if answer.status != 200:
            raise NotAnswered(f"{answer.status} for {path}: {body[:200]!r}")
        return seconds, gzip.decompress(body)


def measure(timeline: Timeline, times: int) -> Iterator[list[str]]:
    """A row per kind of request."""
    seconds, body = timeline.ask({"resolution": RESOLUTION})
    yield row("first open", [seconds], [len(body)])
    whole = json.loads(body)
    begin, end = whole["fullTimespan"]
    # Of events later than that, xprof finds not all.
    events = [event for event in whole["traceEvents"] if event["ph"] == "X" and event["ts"] < 4e9]
    # What makes windows quick is made in the background; people do not zoom within a second either.
    time.sleep(5)
    draw = random.Random(1)

    def window(share: float) -> Query:
        length = (end - begin) * share
        start = draw.uniform(begin, end - length)
        return {"resolution": RESOLUTION, "start_time_ms": repr(start), "end_time_ms": repr(start + length)}

    def details() -> Query:
        event = draw.choice(events)
        times = {"start_time_ms": repr(event["ts"] / 1000), "duration_ms": repr(event["dur"] / 1000)}
        return {"event_name": event["name"], "unique_id": str(event.get("args", {}).get("uid", 0)), **times}

    def search() -> Query:
        name = str(draw.choice(events)["name"])
        return {"resolution": "0", "search_prefix": name[: draw.randint(4, 12)]}

    asked: list[tuple[str, Callable[[], Query]]] = [
        (f"window of {share:.2%} = {(end - begin) * share:,.0f} ms", lambda share=share: window(share))  # type: ignore[misc]
        for share in SHARES
    ]
    for name, query in [*asked, ("details of an event", details), ("search", search)]:
        answers = []
        for _ in range(times):
            # The stock server does not find every event.
            with suppress(NotAnswered):
                answers.append(timeline.ask(query()))
        missed = f", {times - len(answers)} of {times} failed" if len(answers) < times else ""
        yield row(name + missed, [seconds for seconds, _ in answers], [len(body) for _, body in answers])


def row(name: str, seconds: list[float], sizes: list[int]) -> list[str]:
    """Median and worst time, and the median size."""
    if not seconds:
        return [name, "-", "-", "-"]
    spent = [f"{number * 1000:,.0f}" for number in (statistics.median(seconds), max(seconds))]
    return [name, *spent, f"{statistics.median(sizes) / 1e6:,.2f}"]


def main() -> None:
    """Prints a table per session."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=15, help="requests of each kind")
    parser.add_argument("--server", choices=sorted(SUBJECTS), default="hosting")
    parser.add_argument("folders", metavar="FOLDER", type=Path, nargs="*")
    given: Any = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        workloads = [Workload(path.name, path, next(path.iterdir())) for path in given.folders]
        workloads = workloads or [made for made in make_workloads(folder / "made", False) if len(made.hosts) == 1]
        runs = [(workload, link_session(workload, folder / "logs", "0")) for workload in workloads]
        with SUBJECTS[given.server].start(folder / "logs", folder / "own") as server:
            for workload, run in runs:
                timeline = Timeline(server.port, run, workload.hosts[0])
                rows = [[workload.name, *row] for row in measure(timeline, given.times)]
                print(text([["session", "request", "median ms", "worst ms", "JSON MB"], *rows], markdown=False))
                print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)


if __name__ == "__main__":
    main()
