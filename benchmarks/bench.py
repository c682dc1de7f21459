"""Measures this service and the stock xprof server on the same files, in turn, and prints tables.

    python -m benchmarks.bench [--quick] [--markdown]

A cold open is what the UI asks when somebody opens a tool of a session that nobody looked at before: the session's
tools, the tool's hosts, its data. Every cold open has a session of its own (hard links to the same files, so all are
equally in the page cache). A warm view is the data of the same tool again. Memory is the proportional set size of all
processes of a server that was started for this one number, over what it was when idle; the viewers open overview_page
and then trace_viewer@ of one cold session, all at once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from benchmarks.memory import FullMachineGuard, PeakMemory, tree_pss
from benchmarks.report import Memory, Speed, memory_table, speed_table, text
from benchmarks.servers import SERVERS, RunningServer
from benchmarks.viewers import RequestFailed, View, Viewer, together
from benchmarks.workloads import Workload, link_session, make_workloads

TOOLS = ("trace_viewer@", "overview_page", "op_profile")
VIEWERS = 8
CALM = 3.0  # seconds a server is left alone before its idle memory is read
SAME_SIZE = 0.02  # answers may differ by ids that are drawn at random


@dataclass(frozen=True, slots=True)
class Plan:
    """How often and how long to measure; times in seconds, `ends` on the monotonic clock."""

    cold: int
    warm: int
    views_per_viewer: int
    views_within: float
    ends: float

    @property
    def over(self) -> bool:
        return time.monotonic() > self.ends


def measure_speed(workload: Workload, tool: str, folder: Path, plan: Plan) -> list[Speed]:
    """One tool of one workload, on both servers, fresh, beside each other and asked in turn."""
    _progress(f"{workload.name}: {tool}")
    sessions = {name: [link_session(workload, folder / name, f"{i}") for i in range(plan.cold)] for name in SERVERS}
    with ExitStack() as stack:
        servers = []
        for name, start in SERVERS.items():
            server = stack.enter_context(start(folder / name, folder / f"{name}-own"))
            wait_for_sessions(server, sessions[name])
            servers.append(server)
        views = [View(session, tool, workload.hosts) for session in sessions[servers[0].name]]
        return measure_tool(workload.name, views, servers, plan)


def measure_tool(workload: str, views: Sequence[View], servers: Sequence[RunningServer], plan: Plan) -> list[Speed]:
    """One tool: opens every view cold once, then looks at the last one again, alone and with many others."""
    subjects = [Subject(server, Speed(workload, views[-1].tool, server.name), plan) for server in servers]
    for number, view in enumerate(views):
        # Who comes first changes, so that neither always meets the machine as the other left it.
        for subject in subjects if number % 2 == 0 else reversed(subjects):
            subject.open(view)
    for _ in range(plan.warm):
        for subject in subjects:
            subject.look(views[-1])
    # The stock server last: many viewers leave it with so much memory that whoever runs beside it would feel it.
    for subject in reversed(subjects):
        subject.crowd(views[-1])
    sizes = sorted(subject.speed.size for subject in subjects if subject.speed.size)
    if sizes and sizes[-1] - sizes[0] > SAME_SIZE * sizes[-1]:
        for subject in subjects:
            subject.speed.problem = subject.speed.problem or f"the servers' answers differ in size: {sizes} bytes"
    return [subject.speed for subject in subjects]


@dataclass(frozen=True, slots=True)
class Subject:
    """One server in the measurement of one tool. After a failure, or when the time is over, it measures nothing."""

    server: RunningServer
    speed: Speed
    plan: Plan

    def open(self, view: View) -> None:
        with self._measuring() as viewer:
            if viewer:
                self.speed.cold.append(viewer.open(view))

    def look(self, view: View) -> None:
        with self._measuring() as viewer:
            if viewer:
                self.speed.warm.append(viewer.look(view))

    def crowd(self, view: View) -> None:
        """Many viewers look at once, each a number of times; the size of the answer is kept, too."""
        end = min(self.plan.ends, time.monotonic() + self.plan.views_within)

        def look_often(each: Viewer) -> int:
            done = 0
            while done < self.plan.views_per_viewer and time.monotonic() < end:
                each.look(view)
                done += 1
            return done

        with self._measuring() as viewer, FullMachineGuard(self.server.pid):
            if viewer:
                self.speed.rate = together(self.server, VIEWERS, look_often)
                self.speed.size = viewer.size(view)

    @contextmanager
    def _measuring(self) -> Iterator[Viewer | None]:
        if self.plan.over or self.speed.problem:
            yield None
            return
        try:
            with Viewer(self.server) as viewer:
                yield viewer
        except RequestFailed as error:
            self.speed.problem = str(error)


def measure_memory(workload: Workload, server_name: str, folder: Path, plan: Plan) -> Memory:
    """The memory that one viewer, and many viewers at once, cost over an idle server; a fresh server for each."""
    memory = Memory(workload.name, server_name)
    for viewers in (1, VIEWERS):
        if plan.over:
            break
        _progress(f"{workload.name}: memory of {server_name} with {viewers} viewers")
        logdir = folder / f"{server_name}-{viewers}"
        session = link_session(workload, logdir, "memory")
        overview, trace = (View(session, tool, workload.hosts) for tool in ("overview_page", "trace_viewer@"))

        def visit(viewer: Viewer, views: tuple[View, View] = (overview, trace)) -> int:
            for view in views:
                viewer.open(view)
            return len(views)

        with SERVERS[server_name](logdir, folder / f"{server_name}-{viewers}-own") as server:
            wait_for_sessions(server, [session])
            time.sleep(CALM)
            memory.idle = tree_pss(server.pid)
            with PeakMemory(server.pid) as meter:
                try:
                    together(server, viewers, visit)
                except RequestFailed as error:
                    memory.problem = f"with {viewers} viewers: {error}"
            if meter.exhausted:
                memory.problem = f"with {viewers} viewers: stopped at {meter.peak:,} bytes, the machine was full"
            memory.growth[viewers] = meter.peak - memory.idle
    return memory


def wait_for_sessions(server: RunningServer, sessions: Iterable[str], within: float = 60.0) -> None:
    """Waits until the server lists all sessions, so that finding them is not measured."""
    end = time.monotonic() + within
    with Viewer(server) as viewer:
        for session in sessions:
            while not viewer.sees(session):
                if time.monotonic() > end:
                    raise RequestFailed(f"{server.name} does not list {session} after {within:g} s")
                time.sleep(0.5)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one session, each thing once or a few times")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    parser.add_argument(
        "--minutes", type=float, default=40, help="what is not measured by then is left out (default 40)"
    )
    parser.add_argument("--folder", type=Path, help="where to put the files, about 1 GB (default: a temporary folder)")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    ends = started + options.minutes * 60
    plan = Plan(1, 3, 1, 30, ends) if options.quick else Plan(2, 9, 2, 60, ends)
    with tempfile.TemporaryDirectory(prefix="xprof-hosting-bench-", dir=options.folder) as folder:
        _progress("making the sessions")
        workloads = make_workloads(Path(folder) / "sessions", options.quick)
        numbered = enumerate(product(workloads, TOOLS))
        speeds = [
            speed
            for number, (workload, tool) in numbered
            if not plan.over
            for speed in measure_speed(workload, tool, Path(folder) / f"speed-{number}", plan)
        ]
        numbered = enumerate(product(workloads, SERVERS))
        memories = [
            measure_memory(workload, server, Path(folder) / f"memory-{number}", plan)
            for number, (workload, server) in numbered
        ]
    print(text(speed_table(speeds, VIEWERS), options.markdown))
    print()
    print(text(memory_table(memories, VIEWERS), options.markdown))
    problems = [f"{s.server}, {s.workload}, {s.tool}: {s.problem}" for s in speeds if s.problem]
    problems += [f"{m.server}, {m.workload}, memory: {m.problem}" for m in memories if m.problem]
    print("\n".join(["", *problems, f"Took {(time.monotonic() - started) / 60:.1f} minutes."]))
    return 1 if any(problem.startswith("hosting") for problem in problems) else 0


def _progress(message: str) -> None:
    print(f"  {message} …", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
