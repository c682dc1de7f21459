"""The measurements and their tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

MEGABYTE = 1_000_000
NOTHING = "-"


@dataclass(slots=True)
class Speed:
    """One tool of one workload on one server. Times in seconds, sizes in bytes; empty lists were not measured."""

    workload: str
    tool: str
    server: str
    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    size: int = 0
    rate: float | None = None
    """Views per second with many viewers at once."""
    problem: str | None = None


@dataclass(slots=True)
class Memory:
    """One workload on one server. Sizes in bytes."""

    workload: str
    server: str
    idle: int | None = None
    growth: dict[int, int] = field(default_factory=dict)
    """By the number of viewers at once: peak over idle."""
    problem: str | None = None


def speed_table(speeds: Sequence[Speed], viewers: int) -> list[list[str]]:
    """Rows, the first of them the headings; the stock server first, then this service, then how they compare."""
    crowd = f"{viewers} viewers, views/s"
    rows = [
        [
            "session",
            "tool",
            "cold s",
            "ours",
            "ours/stock",
            "warm ms",
            "ours",
            "stock/ours",
            crowd,
            "ours",
            "ours/stock",
        ]
    ]
    for stock, ours in _pairs(speeds):
        cold_stock, cold_ours = _median(stock.cold), _median(ours.cold)
        warm_stock, warm_ours = _median(stock.warm), _median(ours.warm)
        row = [stock.workload, stock.tool]
        row += [_number(cold_stock, 2), _number(cold_ours, 2), _ratio(cold_ours, cold_stock)]
        row += [_number(warm_stock, 1, 1000), _number(warm_ours, 1, 1000), _ratio(warm_stock, warm_ours)]
        row += [_number(stock.rate, 1), _number(ours.rate, 1), _ratio(ours.rate, stock.rate)]
        rows.append(row)
    return rows


def memory_table(memories: Sequence[Memory], viewers: int) -> list[list[str]]:
    """Rows, the first of them the headings, in megabytes (10⁶ bytes)."""
    rows = [["session", "server", "idle MB", "1 viewer, + MB", f"{viewers} viewers, + MB", f"{viewers}/1"]]
    for memory in memories:
        one, many = memory.growth.get(1), memory.growth.get(viewers)
        rows.append(
            [memory.workload, memory.server]
            + [_number(value, 0, 1 / MEGABYTE) for value in (memory.idle, one, many)]
            + [_ratio(many, one)]
        )
    return rows


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


def _pairs(speeds: Sequence[Speed]) -> list[tuple[Speed, Speed]]:
    by_place: dict[tuple[str, str], dict[str, Speed]] = {}
    for speed in speeds:
        by_place.setdefault((speed.workload, speed.tool), {})[speed.server] = speed
    return [(servers["stock"], servers["hosting"]) for servers in by_place.values()]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _number(value: float | None, digits: int, factor: float = 1) -> str:
    return NOTHING if value is None else f"{value * factor:,.{digits}f}"


def _ratio(above: float | None, below: float | None) -> str:
    return NOTHING if above is None or not below else f"{above / below:,.2f}"
