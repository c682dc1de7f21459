"""The tables of a benchmark, made from its numbers.

python -m benchmarks.report benchmarks/results/bench.json [--text]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.results_file import Memory, Results, Speed
from benchmarks.servers import SUBJECTS
from benchmarks.targets import targets_table

MEGABYTE = 1_000_000
NOTHING = "-"
ORDER = tuple(SUBJECTS)
SAME_SIZE = 0.02  # answers may differ by ids that are drawn at random

Rows = list[list[str]]


def speed_table(speeds: Sequence[Speed], what: str, cell: Callable[[Speed], str]) -> Rows:
    """Rows, the first of them the headings: one per tool of a workload, a column per server that has any `cell`.

    A server that failed shows the reason in place of a number; `what` is the measure's name in `Speed.problems`.
    """
    servers = _in_order({speed.server for speed in speeds if cell(speed) != NOTHING or what in speed.problems})
    places = dict.fromkeys((speed.workload, speed.tool) for speed in speeds)
    by_place = {(speed.workload, speed.tool, speed.server): speed for speed in speeds}
    rows = [["session", "tool", *servers]]
    for place in places:
        row = list(place)
        for server in servers:
            speed = by_place.get((*place, server))
            row.append(NOTHING if speed is None else speed.problems.get(what) or cell(speed))
        if any(text != NOTHING for text in row[2:]):
            rows.append(row)
    return rows


def memory_table(memories: Sequence[Memory]) -> Rows:
    """Rows, the first of them the headings, in megabytes (10⁶ bytes)."""
    rows = [["session", "server", "viewers", "idle MB", "more, all processes", "largest process", ""]]
    for memory in sorted(memories, key=lambda memory: (memory.workload, _rank(memory.server), memory.viewers)):
        sizes = [_number(size, 0, 1 / MEGABYTE) for size in (memory.idle, memory.growth, memory.largest)]
        rows.append([memory.workload, memory.server, str(memory.viewers), *sizes, memory.problem or ""])
    return rows


def report(results: Results, markdown: bool) -> str:
    """All tables, each under its title, with the days and the machine."""
    speeds = results.speeds
    tables = [
        ("To reach", targets_table(results)),
        ("Cold open, s (median)", speed_table(speeds, "cold", lambda speed: _median(speed.cold, 2))),
        ("Warm, ms (median)", speed_table(speeds, "warm", lambda speed: _median(speed.warm, 1, 1000))),
        ("Zoom, ms (median, largest)", speed_table(speeds, "zoom", _zoom)),
    ]
    for viewers in sorted({viewers for speed in speeds for viewers in (*speed.rates, *_failed_crowds(speed))}):
        title = f"{viewers} viewers, views/s" if viewers > 1 else "1 viewer, views/s"
        tables.append((title, speed_table(speeds, str(viewers), lambda speed, n=viewers: _rate(speed, n))))  # type: ignore[misc]
    tables.append(("Memory, MB", memory_table(results.memories)))
    parts = [f"{results.dates}, {results.machine.text}"]
    for title, rows in tables:
        if len(rows) > 1:
            parts += [f"**{title}**" if markdown else title, text(rows, markdown)]
    parts += different_sizes(speeds)
    return "\n\n".join(parts)


def different_sizes(speeds: Sequence[Speed]) -> list[str]:
    """A line for each tool of which the servers' answers differ in size by more than chance."""
    places: dict[tuple[str, str], list[Speed]] = {}
    for speed in speeds:
        if speed.size:
            places.setdefault((speed.workload, speed.tool), []).append(speed)
    lines = []
    for (workload, tool), found in places.items():
        sizes = sorted(speed.size for speed in found)
        if sizes[-1] - sizes[0] > SAME_SIZE * sizes[-1]:
            named = ", ".join(f"{speed.server} {speed.size:,}" for speed in found)
            lines.append(f"{workload}, {tool}: answers differ in size: {named} bytes")
    return lines


def text(rows: Sequence[Sequence[str]], markdown: bool) -> str:
    """A table for a terminal or for Markdown; numbers are aligned to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(w) if column < 2 else cell.rjust(w)
            for column, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"| {' | '.join(cells)} |" if markdown else "  ".join(cells).rstrip())
    if markdown:
        lines.insert(1, "|" + "|".join("---" if column < 2 else "--:" for column in range(len(widths))) + "|")
    return "\n".join(lines)


def _in_order(servers: set[str]) -> list[str]:
    return sorted(servers, key=_rank)


def _rank(server: str) -> tuple[int, str]:
    return (ORDER.index(server) if server in ORDER else len(ORDER), server)


def _failed_crowds(speed: Speed) -> list[int]:
    return [int(what) for what in speed.problems if what.isdigit()]


def _zoom(speed: Speed) -> str:
    return f"{_median(speed.zoom, 1, 1000)}, {max(speed.zoom) * 1000:,.1f}" if speed.zoom else NOTHING


def _rate(speed: Speed, viewers: int) -> str:
    return _number(speed.rates.get(viewers), 1)


def _median(values: Sequence[float], digits: int, factor: float = 1) -> str:
    return _number(statistics.median(values), digits, factor) if values else NOTHING


def _number(value: float | None, digits: int, factor: float = 1) -> str:
    return NOTHING if value is None else f"{value * factor:,.{digits}f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="the numbers that a benchmark has written")
    parser.add_argument("--text", action="store_true", help="for a terminal instead of Markdown")
    options = parser.parse_args(arguments)
    if not options.results.is_file():
        parser.error(f"there is no file {options.results}")
    print(report(Results(options.results), markdown=not options.text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
