"""What is to be reached, and how far the numbers are from it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.results_file import Results, Speed

MANY = 64
MEMORY_WORKLOAD = "TPU 4x40 MB"
MEMORY_VIEWERS = 8

Cell = tuple[str, str]
"""A workload and a tool."""


@dataclass(frozen=True, slots=True)
class Found:
    """One comparison: what it is of, its figure and whether that is enough."""

    place: str
    figure: str
    score: float
    """The figure over what is allowed; up to 1 is enough."""


def targets_table(results: Results) -> list[list[str]]:
    """Rows, the first of them the headings: a measure, its target, how often it is met, and its worst case."""
    speeds = {(speed.workload, speed.tool, speed.server): speed for speed in results.speeds}
    cells = list(dict.fromkeys((speed.workload, speed.tool) for speed in results.speeds))
    table = _Cells(speeds, cells)
    rows = [["measure", "target", "met", "worst"]]
    for measure, target, found in (
        ("cold open, a file that xprof-rs can read", "1.5 x xprof-rs", list(table.cold_of_accelerated())),
        ("cold open, one host that it cannot", "1.1 x stock", list(table.cold_of_one_host())),
        ("cold open, hosts that it cannot, 2 shards", "0.8 x stock", list(table.cold_of_several_hosts())),
        ("warm open, p50", "1/50 of stock or 3 ms", list(table.warm())),
        (f"{MANY} viewers, overview and TPU trace", "100 x stock", list(table.crowd(100))),
        (f"{MANY} viewers, GPU trace", "20 x stock", list(table.crowd(20))),
        ("cold open from the bucket", "1.3 x local files", list(table.bucket())),
        (f"memory, {MEMORY_WORKLOAD}, {MEMORY_VIEWERS} viewers", "1/2 of stock", list(memory(results))),
    ):
        worst = max(found, key=lambda one: one.score, default=None)
        met = sum(one.score <= 1 for one in found)
        text = f"{worst.figure} ({worst.place})" if worst else "not measured"
        rows.append([measure, target, f"{met} of {len(found)}", text])
    return rows


def memory(results: Results) -> Iterator[Found]:
    """Our growth over idle against the stock server's, for the one workload that the target is about."""
    growth = {
        cell.server: cell.growth
        for cell in results.memories
        if (cell.workload, cell.viewers) == (MEMORY_WORKLOAD, MEMORY_VIEWERS)
    }
    if growth.get("stock") and "hosting" in growth:
        ratio = growth["hosting"] / growth["stock"]
        yield Found(MEMORY_WORKLOAD, f"{ratio:.2f} x", ratio / 0.5)


@dataclass(frozen=True, slots=True)
class _Cells:
    speeds: dict[tuple[str, str, str], Speed]
    cells: list[Cell]

    def cold_of_accelerated(self) -> Iterator[Found]:
        for cell in self.cells:
            yield from self._cold(cell, "hosting", "xprof-rs", 1.5)

    def cold_of_one_host(self) -> Iterator[Found]:
        for cell in self._refused():
            if " 1x" in cell[0]:
                yield from self._cold(cell, "hosting", "stock", 1.1)

    def cold_of_several_hosts(self) -> Iterator[Found]:
        for cell in self._refused():
            yield from self._cold(cell, "hosting, 2 shards", "stock", 0.8)

    def bucket(self) -> Iterator[Found]:
        for cell in self.cells:
            yield from self._cold(cell, "hosting, bucket", "hosting", 1.3)

    def warm(self) -> Iterator[Found]:
        for cell in self.cells:
            ours, stock = self._median(cell, "hosting", "warm"), self._median(cell, "stock", "warm")
            if ours is not None and stock is not None:
                allowed = max(stock / 50, 0.003)
                figure = f"{ours * 1000:.1f} of {allowed * 1000:.1f} ms"
                yield Found(_name(cell), figure, ours / allowed)

    def crowd(self, times: float) -> Iterator[Found]:
        """Against the stock server's best rate with as many viewers or fewer: with many it may not answer in time."""
        for cell in self.cells:
            tool = cell[1].partition(",")[0]
            wanted = {"overview_page": 100, "trace_viewer@": 20 if cell[0].startswith("GPU") else 100}.get(tool)
            ours, stock = (self.speeds.get((*cell, server)) for server in ("hosting", "stock"))
            alone = self._median(cell, "stock", "warm")
            best = max([*(stock.rates.values() if stock else ()), 1 / alone if alone else 0.0])
            if wanted == times and ours and MANY in ours.rates and best:
                ratio = ours.rates[MANY] / best
                yield Found(_name(cell), f"{ratio:,.0f} x", times / ratio if ratio else float("inf"))

    def _refused(self) -> Iterator[Cell]:
        for cell in self.cells:
            speed = self.speeds.get((*cell, "xprof-rs"))
            if speed is not None and speed.problems.get("cold", "").startswith("refused"):
                yield cell

    def _cold(self, cell: Cell, ours: str, other: str, allowed: float) -> Iterator[Found]:
        above, below = self._median(cell, ours, "cold"), self._median(cell, other, "cold")
        if above is not None and below:
            yield Found(_name(cell), f"{above / below:.2f} x", above / below / allowed)

    def _median(self, cell: Cell, server: str, what: str) -> float | None:
        speed = self.speeds.get((*cell, server))
        # Times of a server that failed in between would be those of its good moments.
        if speed is None or what in speed.problems:
            return None
        values = speed.warm if what == "warm" else speed.cold
        return statistics.median(values) if values else None


def _name(cell: Cell) -> str:
    return f"{cell[0]}, {cell[1]}"
