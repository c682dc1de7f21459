"""Measures this service, the stock xprof server alone and with two workers, and xprof-rs on the same files, in turn.

    python -m benchmarks.bench [--quick] [--only WORKLOAD/TOOL ...] [--peers NAME,...] [--json FILE] [--resume]

A cold open is what the UI asks when somebody opens a tool of a session that nobody looked at before: the session's
tools, the tool's hosts, its data. Every cold open has a session of its own (hard links to the same files, so all are
equally in the page cache) on a server that has opened a small one. A warm view is the data of the same tool again, a
zoom the windows that the UI asks for next. Memory is the proportional set size of all processes of a server that was
started for this one number, over what it was when idle; the viewers open overview_page and then trace_viewer@ of one
cold session, all at once. Only this service reads the bucket: xprof needs gcsfs and credentials for it, xprof-rs has
no way to name an emulator.

What was measured is written as it comes; the tables are made from that file (`python -m benchmarks.report FILE`).
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.measure import Comparison, Plan, measure_memory
from benchmarks.report import report
from benchmarks.results_file import Results
from benchmarks.servers import SUBJECTS, Subject
from benchmarks.targets import MANY, MEMORY_VIEWERS, MEMORY_WORKLOAD
from benchmarks.viewers import ALL_HOSTS
from benchmarks.workloads import Workload, make_workloads

TOOLS = ("overview_page", "trace_viewer@", "op_profile")
TOOLS_OF_ALL_HOSTS = (f"trace_viewer@{ALL_HOSTS}",)
MEMORY = "memory"
DEFAULT_RESULTS = Path(__file__).parent / "results" / "bench.json"


@dataclass(frozen=True, slots=True)
class Unit:
    """What is measured together: tools of one workload on the same servers, or the memory that viewers cost."""

    workload: Workload
    tools: tuple[str, ...] = ()
    viewers: int = 0


def units(workloads: Sequence[Workload]) -> list[Unit]:
    """Everything, the most telling first: what takes long, and what every viewer more costs, comes at the end."""
    several = [workload for workload in workloads if len(workload.hosts) > 1]
    planned = []
    for workload in workloads:
        planned.append(Unit(workload, TOOLS))
        if workload.name == MEMORY_WORKLOAD:
            planned.append(Unit(workload, viewers=MEMORY_VIEWERS))
    planned += [Unit(workload, TOOLS_OF_ALL_HOSTS) for workload in several]
    for viewers in (MEMORY_VIEWERS, 1):
        planned += [Unit(workload, viewers=viewers) for workload in workloads]
    return list(dict.fromkeys(planned))


class Bench:
    """One run: what is wanted of all that can be measured, and where it goes."""

    def __init__(
        self, results: Results, subjects: dict[str, Subject], only: Sequence[str], resume: bool, plan: Plan
    ) -> None:
        self._results = results
        self._subjects = subjects
        self._only = [part.lower() for part in only]
        self._resume = resume
        self._plan = plan

    def wants(self, workload: str, tool: str = "") -> bool:
        """Whether something is to be measured: no choice was made, or one names it, or its tool of any workload."""
        for choice in self._only:
            name, _, wanted = choice.partition("/")
            # A workload's files are needed whichever of its tools is.
            if workload.lower().startswith(name) and (not tool or not wanted or wanted == tool.lower()):
                return True
        return not self._only

    def run(self, planned: Sequence[Unit], folder: Path) -> None:
        """Measures until the time is over."""
        for number, unit in enumerate(planned):
            place = folder / str(number)
            for _ in self._memory(unit, place) if unit.viewers else self._speeds(unit, place):
                if self._plan.over:
                    _progress("the time is over")
                    return

    def _speeds(self, unit: Unit, folder: Path) -> Iterator[None]:
        tools = [tool for tool in unit.tools if self.wants(unit.workload.name, tool)]
        several = len(unit.workload.hosts) > 1
        subjects = {name: subject for name, subject in self._subjects.items() if several or not subject.several_hosts}
        tools = [tool for tool in tools if any(self._is_due("speed", unit, tool, name) for name in subjects)]
        if not tools:
            return
        plan = replace(self._plan, cold=1) if tools[0].endswith(ALL_HOSTS) else self._plan
        with Comparison(unit.workload, tools, subjects, folder, plan) as comparison:
            for tool in tools:
                _progress(f"{unit.workload.name}: {tool}")
                for speed in comparison.measure(tool):
                    self._results.add(speed)
                yield

    def _memory(self, unit: Unit, folder: Path) -> Iterator[None]:
        if not self.wants(unit.workload.name, MEMORY):
            return
        for name, subject in self._subjects.items():
            if not subject.cold_only and self._is_due("memory", unit, str(unit.viewers), name):
                _progress(f"{unit.workload.name}: memory of {name} with {unit.viewers} viewers")
                self._results.add(measure_memory(unit.workload, name, subject, unit.viewers, folder))
                yield

    def _is_due(self, kind: str, unit: Unit, what: str, subject: str) -> bool:
        return not (self._resume and (kind, unit.workload.name, what, subject) in self._results.cells)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    # So that servers are stopped and files removed however we are.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = time.monotonic()
    ends = started + options.minutes * 60
    quick, full = Plan(1, 3, 1.0, (1, 8), 1.0, 5.0, ends), Plan(2, 30, 3.0, (1, 8, MANY), 3.0, 15.0, ends)
    plan = quick if options.quick else full
    results = Results(options.json or (None if options.quick else DEFAULT_RESULTS))
    bench = Bench(results, _chosen(options.peers), options.only, options.resume, plan)
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="xprof-hosting-bench-", dir=options.folder)
        folder = Path(stack.enter_context(temporary))
        _progress("making the sessions")
        workloads = make_workloads(options.sessions or folder / "sessions", options.quick, bench.wants)
        bench.run(units(workloads), folder)
    print(report(results, options.markdown))
    print(f"\nTook {(time.monotonic() - started) / 60:.1f} minutes.")
    ours = [cell for cell in results.speeds if cell.server.startswith("hosting") and cell.problems]
    failed = [cell for cell in results.memories if cell.server.startswith("hosting") and cell.problem]
    return 1 if ours or failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sessions, each thing once or a few times")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORKLOAD/TOOL",
        help="measure this alone, as 'TPU 4x40', '/overview_page' or 'GPU 1x79/memory'; repeatable",
    )
    names = [name for name, subject in SUBJECTS.items() if not subject.ours]
    parser.add_argument("--peers", help=f"whom to compare with, of {','.join(names)} (default: all; '' for none)")
    parser.add_argument(
        "--minutes", type=float, default=40, help="what is not measured by then is left out (default 40)"
    )
    parser.add_argument(
        "--json", type=Path, help=f"where the numbers go (default: {DEFAULT_RESULTS.name} in results; --quick: nowhere)"
    )
    parser.add_argument("--resume", action="store_true", help="leave out what the file of numbers has already")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    parser.add_argument("--folder", type=Path, help="where to put the files, some 4 GB (default: a temporary folder)")
    parser.add_argument(
        "--sessions", type=Path, help="where the sessions are made and stay for the next run; on the folder's disk"
    )
    return parser


def _chosen(peers: str | None) -> dict[str, Subject]:
    """The subjects that are wanted and can be measured here.

    Raises:
        SystemExit: a peer that there is not.
    """
    wanted = set(SUBJECTS) if peers is None else {part.strip() for part in peers.split(",") if part.strip()}
    if unknown := wanted - set(SUBJECTS):
        raise SystemExit(f"There is no peer named {', '.join(sorted(unknown))}; there are {', '.join(SUBJECTS)}.")
    chosen = {}
    for name, subject in SUBJECTS.items():
        if subject.ours or name in wanted:
            if lack := subject.lacks():
                _progress(f"{name} is left out: {lack}")
            else:
                chosen[name] = subject
    return chosen


def _progress(message: str) -> None:
    print(f"  {time.strftime('%H:%M:%S')} {message} …", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
