"""Measures sessions of several hosts on one shard and on two, and what each step of opening them costs.

    python -m benchmarks.scaling [--quick] [--json FILE]

Every shard has one engine process, so that two shards have twice the processes of one. The costs are those of the
engine calls in the service's log, for growing numbers of hosts on one shard. `benchmarks.simulate` takes them from
there.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.costs import DEFAULT_COSTS, Costs, EngineCalls, Run, SessionCosts, engine_calls
from benchmarks.report import text
from benchmarks.results_file import Machine
from benchmarks.servers import COLD, RunningServer, hosting_server
from benchmarks.viewers import View, Viewer, wait_for_sessions
from benchmarks.workloads import host_files, link_hosts, make_workloads
from loaders.file_cache import FileCache

PATIENCE = 1200.0  # seconds for one answer
_MEASURED = ("TPU 4x40 MB", "GPU 16x20 MB")
KEEPS = 20  # how often keeping a map's output is timed


@dataclass(frozen=True, slots=True)
class Kind:
    """Hosts of one kind: all sessions of it have links to one file."""

    name: str
    file: Path
    compared: int
    """The number of hosts that is measured on two shards, too, and whose traces are opened."""
    reduced: tuple[int, ...]
    """The numbers of hosts that a reduce is measured for."""


@dataclass(frozen=True, slots=True)
class Opened:
    """One cold session: times in seconds, and the engine's calls for the inspection and the overview."""

    run: Run
    inspection: EngineCalls
    overview: EngineCalls


@dataclass(frozen=True, slots=True)
class Measured:
    """A kind's sessions on one number of shards, and what their hosts left: bytes of inspection and map output."""

    kind: Kind
    opened: list[Opened]
    inspection_bytes: int
    map_bytes: int
    keep_seconds: float
    """To keep a map's output that came from another shard."""


def open_session(server: RunningServer, logs: Path, kind: Kind, hosts: int, shards: int) -> Opened:
    """Opens a cold session's tools, its overview and, for the compared number of hosts, every host's trace at once."""
    session = _session(kind, hosts)
    names = _hosts(hosts)
    with Viewer(server, PATIENCE) as viewer:
        inspection = viewer.tools(session)
        inspected = engine_calls(logs, viewer.request_id)
        overview = viewer.look(View(session, "overview_page", names))
        made = engine_calls(logs, viewer.request_id)
    traces = _open_traces(server, session, names) if hosts == kind.compared else None
    return Opened(Run(kind.name, hosts, shards, inspection, overview, traces), inspected, made)


def measure(kind: Kind, shards: int, folder: Path) -> Measured:
    """Opens the sessions of a kind on a fresh service with so many shards, one engine process each."""
    numbers = kind.reduced if shards == 1 else (kind.compared,)
    sessions = []
    for hosts in numbers:
        run, _, name = _session(kind, hosts).partition("/")
        sessions.append(link_hosts(dict.fromkeys(_hosts(hosts), kind.file), folder / "logs", run, name))
    arguments = [*COLD, "--shards", str(shards), "--engine-processes", "1", "--engine-deadline", "900"]
    with hosting_server(folder / "logs", folder / "own", arguments) as server:
        wait_for_sessions(server, sessions)
        state = folder / "own" / "state"
        opened = []
        for hosts in numbers:
            print(f"  {kind.name}: {hosts} hosts, shards: {shards} …", file=sys.stderr, flush=True)
            opened.append(open_session(server, state / "logs", kind, hosts, shards))
        entries = list((state / "cache" / "entries").iterdir())
        inspections = [_size(entry) for entry in entries if (entry / "inspection.json").exists()]
        maps = [entry for entry in entries if (entry / "op_stats_facts.json").exists()]
        keep = asyncio.run(_keep_seconds(maps[0], folder / "kept")) if maps else 0.0
    return Measured(kind, opened, _middle(inspections), _middle([_size(entry) for entry in maps]), keep)


def session_costs(measured: Measured) -> SessionCosts:
    """The costs that the sessions of one kind have shown on one shard.

    Raises:
        ValueError: the log has no maps of theirs.
    """
    kind, opened = measured.kind, measured.opened
    inspects, maps, overheads = [], [], []
    for one in opened:
        calls = one.overview.median("map_op_stats")
        if calls is not None:
            maps.append(calls)
        # Where another engine said what tools there are, there is no call for each host.
        inspects.append(one.inspection.median("inspect") or one.run.inspection / one.run.hosts)
        overheads.append((one.run.overview - one.overview.total) / one.run.hosts)
    if not maps:
        raise ValueError(f"the service's log has no maps of {kind.name}: another engine or another log format?")
    return SessionCosts(
        name=kind.name,
        host_bytes=kind.file.stat().st_size,
        inspect_seconds=statistics.median(inspects),
        map_seconds=statistics.median(maps),
        map_peak_bytes=max(one.overview.peak_bytes for one in opened),
        overhead_seconds=max(0.0, statistics.median(overheads)),
        inspect_output_bytes=measured.inspection_bytes,
        map_output_bytes=measured.map_bytes,
        keep_seconds=measured.keep_seconds,
        reduces=tuple((one.run.hosts, sum(one.overview.seconds.get("tool_data", []))) for one in opened),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints what was measured and writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small files and few hosts")
    parser.add_argument("--json", type=Path, help=f"where it goes (default: {DEFAULT_COSTS.name}; --quick: nowhere)")
    parser.add_argument("--folder", type=Path, help="where to put the files, some 1 GB (default: a temporary folder)")
    parser.add_argument("--sessions", type=Path, help="where the bench keeps its sessions, to use them again")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="xprof-hosting-scaling-", dir=options.folder) as temporary:
        folder = Path(temporary)
        kinds = _kinds(options.sessions or folder / "sessions", options.quick)
        found = [measure(kind, shards, folder / f"{n}-{shards}") for n, kind in enumerate(kinds) for shards in (1, 2)]
    # What the steps cost is taken from one shard, where nothing runs beside them.
    sessions = tuple(session_costs(measured) for measured in found[::2])
    runs = tuple(opened.run for measured in found for opened in measured.opened)
    costs = Costs(time.strftime("%Y-%m-%d"), Machine.here(), sessions, runs)
    print(scaling_report(costs))
    path = options.json or (None if options.quick else DEFAULT_COSTS)
    if path:
        costs.write(path)


def scaling_report(costs: Costs) -> str:
    """Two tables: how long the sessions took, and what the steps cost."""
    rows = [["session", "hosts", "shards", "tools s", "overview s", "every trace s"]]
    for run in costs.runs:
        traces = "-" if run.traces is None else f"{run.traces:.2f}"
        rows.append(
            [run.session, str(run.hosts), str(run.shards), f"{run.inspection:.2f}", f"{run.overview:.2f}", traces]
        )
    steps = [
        ["per host", "MB", "inspect s", "map s", "map's peak MB", "besides s", "output KB", "keep it ms", "reduce s"]
    ]
    for one in costs.sessions:
        reduces = ", ".join(f"{hosts}: {seconds:.2f}" for hosts, seconds in one.reduces)
        figures = [f"{one.inspect_seconds:.3f}", f"{one.map_seconds:.3f}", f"{one.map_peak_bytes / 1e6:.0f}"]
        figures += [f"{one.overhead_seconds:.3f}", f"{one.map_output_bytes / 1e3:.0f}", f"{one.keep_seconds * 1e3:.1f}"]
        steps.append([one.name, f"{one.host_bytes / 1e6:.0f}", *figures, reduces])
    return f"{costs.date}, {costs.machine.text}\n\n{text(rows, False)}\n\n{text(steps, False)}"


def _kinds(folder: Path, quick: bool) -> list[Kind]:
    workloads = make_workloads(folder, quick, lambda name: quick or name in _MEASURED or name.startswith("CPU"))
    kinds = []
    for workload in workloads:
        hosts = len(workload.hosts)
        name = f"{workload.name.split()[0]} {workload.name.partition('x')[2]} hosts"
        kinds.append(Kind(name, host_files(workload.folder)[0], hosts, (2, 3) if quick else (2, 4, 8, 16)))
    return kinds


def _session(kind: Kind, hosts: int) -> str:
    return f"{kind.name.replace(' ', '_')}/{hosts}-hosts"


def _hosts(hosts: int) -> tuple[str, ...]:
    return tuple(f"host-{number:03}" for number in range(hosts))


def _open_traces(server: RunningServer, session: str, hosts: tuple[str, ...]) -> float:
    def one(host: str) -> None:
        with Viewer(server, PATIENCE) as viewer:
            viewer.look(View(session, "trace_viewer@", (host,)))

    started = time.perf_counter()
    with ThreadPoolExecutor(len(hosts)) as pool:
        list(pool.map(one, hosts))
    return time.perf_counter() - started


async def _keep_seconds(entry: Path, folder: Path) -> float:
    cache = FileCache(folder, 1 << 30)

    def copy(target: Path) -> None:
        target.mkdir()
        for file in entry.iterdir():
            (target / file.name).write_bytes(file.read_bytes())

    times = []
    for number in range(KEEPS):
        started = time.perf_counter()
        async with cache.scratch() as scratch:
            await asyncio.to_thread(copy, scratch / "entry")
            await cache.publish_entry(f"{number:064}", scratch / "entry")
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _size(entry: Path) -> int:
    return sum(file.stat().st_size for file in entry.iterdir())


def _middle(sizes: Sequence[int]) -> int:
    return int(statistics.median(sizes)) if sizes else 0


if __name__ == "__main__":
    main()
