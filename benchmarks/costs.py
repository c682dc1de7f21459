"""What opening a session of several hosts costs, step by step, as `benchmarks.scaling` has measured it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.results_file import Machine, write_json

DEFAULT_COSTS = Path(__file__).parent / "results" / "costs.json"


@dataclass(frozen=True, slots=True)
class SessionCosts:
    """Costs per host and of the reduce, for hosts of one kind and size. Seconds and bytes; medians over hosts."""

    name: str
    host_bytes: int
    inspect_seconds: float
    """Finding out a host's tools and modules, which the UI asks first."""
    map_seconds: float
    map_peak_bytes: int
    overhead_seconds: float
    """What a host's map takes besides the engine: scratch folder, links, calls, keeping the output."""
    inspect_output_bytes: int
    map_output_bytes: int
    keep_seconds: float
    """Reading a map's output at its owner and keeping it at the reducer, without the network."""
    reduces: tuple[tuple[int, float], ...]
    """Numbers of hosts, and what the reduce of so many took."""

    @property
    def reduce_line(self) -> tuple[float, float]:
        """What a reduce takes at all, and for each host: the line next to those measured, but never a falling one."""
        base, slope = fitted_line(self.reduces)
        return (base, slope) if slope > 0 else (statistics.fmean(seconds for _, seconds in self.reduces), 0.0)

    def reduce_seconds(self, hosts: int) -> float:
        """A reduce of so many hosts."""
        base, slope = self.reduce_line
        return max(0.0, base + slope * hosts)


@dataclass(frozen=True, slots=True)
class Run:
    """How long a session of so many hosts took on so many shards with one engine process each. Seconds."""

    session: str
    hosts: int
    shards: int
    inspection: float
    overview: float
    traces: float | None
    """Every host's trace, all opened at once; None where they were not."""


@dataclass(frozen=True, slots=True)
class Costs:
    """All that was measured, when and where."""

    date: str
    machine: Machine
    sessions: tuple[SessionCosts, ...]
    runs: tuple[Run, ...]

    def write(self, path: Path) -> None:
        """Writes everything as JSON."""
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Costs:
        """What `write` has written."""
        found: dict[str, Any] = json.loads(path.read_text())
        sessions = [
            SessionCosts(**{**one, "reduces": tuple((hosts, seconds) for hosts, seconds in one["reduces"])})
            for one in found["sessions"]
        ]
        runs = tuple(Run(**one) for one in found["runs"])
        return cls(found["date"], Machine(**found["machine"]), tuple(sessions), runs)


@dataclass(frozen=True, slots=True)
class EngineCalls:
    """The engine's calls for some requests, from the service's log."""

    seconds: dict[str, list[float]]
    """By the call's name."""
    peak_bytes: int

    def median(self, call: str) -> float | None:
        """The median time of a call; None where there was none."""
        return statistics.median(self.seconds[call]) if self.seconds.get(call) else None

    @property
    def total(self) -> float:
        return sum(sum(times) for times in self.seconds.values())


def engine_calls(logs: Path, request_id: str) -> EngineCalls:
    """Reads the engine's calls for one request from a folder of logs."""
    seconds: dict[str, list[float]] = {}
    peak = 0
    for file in sorted(logs.glob("*.jsonl")):
        with file.open() as lines:
            for line in lines:
                if request_id not in line or "engine call done" not in line:
                    continue
                said = json.loads(line)
                seconds.setdefault(said["call"], []).append(said["seconds"])
                peak = max(peak, said["peak_bytes"])
    return EngineCalls(seconds, peak)


def fitted_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The straight line next to the points, by least squares: its value at 0, and its slope.

    Raises:
        ValueError: there are no points.
    """
    if not points:
        raise ValueError("there is nothing to fit a line to")
    if len({x for x, _ in points}) == 1:
        return statistics.fmean(y for _, y in points), 0.0
    slope, base = statistics.linear_regression(*zip(*points, strict=True))
    return base, slope
