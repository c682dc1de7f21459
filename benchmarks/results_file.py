"""The raw numbers of a benchmark, and the file they are kept in while it runs and after."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("xprof", "xprof-rs", "ray", "xprof-hosting")


@dataclass(slots=True)
class Speed:
    """One tool of one workload on one server. Times in seconds, sizes in bytes; what is empty was not measured."""

    workload: str
    tool: str
    server: str
    date: str = ""
    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    zoom: list[float] = field(default_factory=list)
    """One per window of a trace, in the order in which they were asked for."""
    rates: dict[int, float] = field(default_factory=dict)
    """Views per second by the number of viewers at once."""
    problems: dict[str, str] = field(default_factory=dict)
    """What went wrong, by what was measured: `cold`, `warm`, `zoom`, or the number of viewers."""
    size: int = 0

    @property
    def key(self) -> tuple[str, ...]:
        return ("speed", self.workload, self.tool, self.server)


@dataclass(slots=True)
class Memory:
    """What a server took while some viewers opened a workload at once. Bytes of proportional set size."""

    workload: str
    server: str
    viewers: int
    date: str = ""
    idle: int = 0
    """The sum over all its processes before."""
    growth: int = 0
    """The sum's peak, less `idle`."""
    largest: int = 0
    """The most that a single process took."""
    problem: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        return ("memory", self.workload, str(self.viewers), self.server)


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it was measured, and with which versions."""

    cpus: int
    memory_gib: float
    model: str
    versions: Mapping[str, str]

    @classmethod
    def here(cls) -> Machine:
        """This machine and this environment."""
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
        return cls(os.cpu_count() or 1, round(memory, 1), _model(), {name: _version(name) for name in PACKAGES})

    @property
    def text(self) -> str:
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return f"{self.cpus} CPUs ({self.model}), {self.memory_gib:g} GiB; {versions}"


class Results:
    """Measurements by what was measured, written to a file with every new one. `path` None keeps them in memory."""

    def __init__(self, path: Path | None = None) -> None:
        self.machine = Machine.here()
        self.cells: dict[tuple[str, ...], Speed | Memory] = {}
        self._path = path
        if path is not None and path.exists():
            self._read(json.loads(path.read_text()))

    @property
    def speeds(self) -> list[Speed]:
        return [cell for cell in self.cells.values() if isinstance(cell, Speed)]

    @property
    def memories(self) -> list[Memory]:
        return [cell for cell in self.cells.values() if isinstance(cell, Memory)]

    @property
    def dates(self) -> str:
        """The days of the measurements, first and last."""
        days = sorted({cell.date[:10] for cell in self.cells.values()})
        return " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "never"

    def add(self, cell: Speed | Memory) -> None:
        """Keeps a measurement, in place of an older one of the same thing."""
        cell.date = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        self.cells[cell.key] = cell
        if self._path is not None:
            # What was measured here must not be told as another machine's.
            self.machine = Machine.here()
            write_json(self._path, self._contents())

    def _contents(self) -> dict[str, Any]:
        return {
            "machine": asdict(self.machine),
            "speed": [asdict(cell) for cell in self.speeds],
            "memory": [asdict(cell) for cell in self.memories],
        }

    def _read(self, contents: dict[str, Any]) -> None:
        self.machine = Machine(**contents["machine"])
        for values in contents["speed"]:
            rates = {int(viewers): rate for viewers, rate in values.pop("rates").items()}
            speed = Speed(**values, rates=rates)
            self.cells[speed.key] = speed
        for values in contents["memory"]:
            memory = Memory(**values)
            self.cells[memory.key] = memory


def write_json(path: Path, contents: object) -> None:
    """Writes a file of JSON that is whole at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(contents, indent=1) + "\n")
    partial.replace(path)


def _model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"
