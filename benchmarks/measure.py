"""Measuring: several servers on the same sessions, alternating; and the memory of one."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from benchmarks.generate import SUFFIX
from benchmarks.memory import PeakMemory, tree_pss
from benchmarks.results_file import Memory, Speed
from benchmarks.servers import RunningServer, Subject
from benchmarks.viewers import RequestFailed, View, Viewer, together, views_per_second, wait_for_sessions
from benchmarks.windows import time_range, zoom_parameters
from benchmarks.workloads import Workload, link_session

T = TypeVar("T")

CALM = 3.0  # seconds a server is left alone before its idle memory is read
MEMORY_TOOLS = ("overview_page", "trace_viewer@")
_WARM_UP = "warm-up/warm-up"


@dataclass(frozen=True, slots=True)
class Plan:
    """How often and how long to measure; times in seconds, `ends` on the monotonic clock."""

    cold: int
    warm: int
    warm_within: float
    viewers: tuple[int, ...]
    views_within: float
    patience: float
    ends: float

    @property
    def over(self) -> bool:
        return time.monotonic() > self.ends


@dataclass(slots=True)
class Stand:
    """One subject's place in a comparison: its log folder, and its server, started when needed and after each end."""

    name: str
    subject: Subject
    folder: Path
    sessions: list[str] = field(default_factory=list)
    _running: ExitStack | None = None
    _server: RunningServer | None = None
    _starts: int = 0

    @property
    def logdir(self) -> Path:
        return self.folder / "logs"

    def link(self, workload: Workload, session: str) -> str:
        """Adds a session; all of them before the first start."""
        self.sessions.append(link_session(workload, self.logdir, session))
        return self.sessions[-1]

    def add_warm_up(self, workload: Workload) -> None:
        """Adds the small session that every fresh server opens once, so that none is measured while it loads code."""
        folder = self.logdir / "warm-up" / "plugins" / "profile" / "warm-up"
        folder.mkdir(parents=True)
        shutil.copyfile(workload.source, folder / f"host{SUFFIX}")
        self.sessions.append(_WARM_UP)

    def server(self) -> RunningServer:
        """The running server.

        Raises:
            RuntimeError: it did not start, or does not list its sessions.
        """
        if self._server is None:
            self.stop()
            self._starts += 1
            self._running = ExitStack()
            start = self.subject.start(self.logdir, self.folder / f"own-{self._starts}")
            server = replace(self._running.enter_context(start), name=self.name)
            wait_for_sessions(server, self.sessions)
            if _WARM_UP in self.sessions:
                self._warm_up(server)
            self._server = server
        return self._server

    def stop(self) -> None:
        """Ends the server, if it runs."""
        running, self._running, self._server = self._running, None, None
        if running is not None:
            running.close()

    @staticmethod
    def _warm_up(server: RunningServer) -> None:
        for tool in MEMORY_TOOLS:
            # Who refuses this file will refuse the larger ones, too, and be asked for them.
            try:
                with Viewer(server) as viewer:
                    viewer.open(View(_WARM_UP, tool, ("host",)))
            except RequestFailed:
                return


class Comparison:
    """Several subjects on one workload; its tools are measured one after the other. A context manager."""

    def __init__(
        self, workload: Workload, tools: Sequence[str], subjects: dict[str, Subject], folder: Path, plan: Plan
    ) -> None:
        self._workload = workload
        self._plan = plan
        self._folder = folder
        self._sessions: dict[str, list[str]] = {}
        self._range: tuple[float, float] | None = None
        self._stands = [Stand(name, subject, folder / str(n)) for n, (name, subject) in enumerate(subjects.items())]
        for stand in self._stands:
            for tool in tools:
                names = [f"{number}-{tool.replace(' ', '')}" for number in range(plan.cold)]
                self._sessions[tool] = [stand.link(workload, name) for name in names]
            stand.add_warm_up(workload)

    def __enter__(self) -> Comparison:
        return self

    def __exit__(self, *_: object) -> None:
        for stand in self._stands:
            stand.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def measure(self, tool: str) -> Iterator[Speed]:
        """One tool: opens every session cold once, then looks at the last one again, alone and with many others.

        When the time is over, what is not yet complete is left out.
        """
        views = [View(session, tool, self._workload.hosts) for session in self._sessions[tool]]
        takers = [_Taker(stand, Speed(self._workload.name, tool, stand.name), self._plan) for stand in self._stands]
        for number, view in enumerate(views):
            # Who comes first changes, so that none always meets the machine as the other left it.
            for taker in takers if number % 2 == 0 else reversed(takers):
                taker.take("cold", taker.speed.cold, lambda viewer, view=view: viewer.open(view))  # type: ignore[misc]
        whole = [taker for taker in takers if not taker.stand.subject.cold_only]
        self._measure_warm(whole, views[-1])
        if views[-1].tag == "trace_viewer@":
            self._measure_zoom(whole, views[-1])
        for taker in takers:
            if taker in whole:
                taker.crowd(views[-1])
            if self._plan.over:
                return
            yield taker.speed

    def _measure_warm(self, takers: Sequence[_Taker], view: View) -> None:
        spent = dict.fromkeys(range(len(takers)), 0.0)
        for _ in range(self._plan.warm):
            for number, taker in enumerate(takers):
                if spent[number] < self._plan.warm_within:
                    began = time.monotonic()
                    taker.take("warm", taker.speed.warm, lambda viewer: viewer.look(view))
                    spent[number] += time.monotonic() - began

    def _measure_zoom(self, takers: Sequence[_Taker], view: View) -> None:
        one_host = replace(view, hosts=view.hosts[:1])
        for taker in reversed(takers):
            if self._range is None and not taker.speed.problems and not self._plan.over:
                self._range = taker.attempt("zoom", lambda viewer: time_range(viewer.body(one_host)))
        for window in zoom_parameters(*self._range) if self._range else []:
            part = replace(view, more=window)
            for taker in takers:
                taker.take("zoom", taker.speed.zoom, lambda viewer, part=part: viewer.look(part))  # type: ignore[misc]


@dataclass(slots=True)
class _Taker:
    """Takes the times of one subject for one tool; after a failure no more of them, and from a fresh server."""

    stand: Stand
    speed: Speed
    plan: Plan

    def take(self, what: str, times: list[float], work: Callable[[Viewer], float]) -> None:
        seconds = None if self.speed.problems or self.plan.over else self.attempt(what, work)
        if seconds is not None:
            times.append(seconds)

    def crowd(self, view: View) -> None:
        plan = self.plan
        for viewers in plan.viewers:
            if self.speed.problems or plan.over:
                break
            if self.speed.size == 0:
                self.speed.size = self.attempt("size", lambda viewer: len(viewer.body(view))) or 0
            best, longest = max(self.speed.rates.values(), default=0.0), plan.views_within + plan.patience
            if viewers >= 8 and best and viewers / best > 2 * longest:
                self.speed.problems[str(viewers)] = f"some {viewers / best:,.0f} s each"
                break
            rate, problem = views_per_second(self.stand.server(), viewers, view, plan.views_within, plan.patience)
            self.speed.rates[viewers] = rate
            if problem is not None:
                self.speed.problems[str(viewers)] = problem
        if not self.stand.subject.ours or self.speed.problems:
            # Many viewers leave the stock server with so much memory that whoever comes next would feel it.
            self.stand.stop()

    def attempt(self, what: str, work: Callable[[Viewer], T]) -> T | None:
        """What a viewer gets; None after a failure, which is noted."""
        try:
            with Viewer(self.stand.server()) as viewer:
                return work(viewer)
        except RuntimeError as error:
            reason = error.reason if isinstance(error, RequestFailed) else "did not start"
            self.speed.problems[what] = reason
            if not reason.startswith("refused"):
                # It may still be at work for nobody.
                self.stand.stop()
            return None


def measure_memory(workload: Workload, name: str, subject: Subject, viewers: int, folder: Path) -> Memory:
    """The memory that some viewers at once cost over an idle, fresh server; each opens the same tools in turn."""
    memory = Memory(workload.name, name, viewers)
    stand = Stand(name, subject, folder)
    session = stand.link(workload, "memory")

    def visit(viewer: Viewer) -> None:
        for tool in MEMORY_TOOLS:
            try:
                viewer.open(View(session, tool, workload.hosts))
            except RequestFailed as error:
                memory.problem = error.reason

    try:
        server = stand.server()
        time.sleep(CALM)
        memory.idle, memory.largest = tree_pss(server.pids)
        with PeakMemory(server.pids) as meter:
            together(server, viewers, visit)
        memory.problem = "filled the machine" if meter.exhausted else memory.problem
        memory.growth, memory.largest = meter.peak - memory.idle, meter.largest
    finally:
        stand.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return memory
