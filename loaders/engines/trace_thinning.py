"""Taking events out of a trace's JSON, as xprof writes it, until it fits a size.

Works on the bytes: xprof 2.24.2 writes every event as `{"pid":…,"tid":…,"name":…,"ts":…,"dur":…,…}` in one list, after
the metadata events (`{"args":…`). Quotes inside strings are escaped, so an event's start cannot be mistaken.
"""

from __future__ import annotations

import json
import re
from array import array
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from loaders.engines.runs import runs

# A complete event has `dur`, an asynchronous one `id`, and a counter a list of entries in place of both.
_EVENT: Final = re.compile(
    rb'(?<=[\[,])\{"pid":(\d+)(?:,"tid":(\d+))?,"name":"(?:[^"\\]+|\\.)*",'
    rb'(?:"ts":([0-9.e+-]+)(?:,"dur":([0-9.e+-]+)|,"id":(\d+))?|"ph":"C")'
)
_EVENTS: Final = b'"traceEvents":['
_EVENTS_END: Final = b'], "showCounterMessage"'
_ENTRIES: Final = b'"entries":['
_NEXT_ENTRY: Final = re.compile(rb"\],\[")
_PARTS: Final = (1, 8, 64, 512, 4096)  # in which the longest event of a row counts more than any later one
_COUNTERS_SHARE: Final = 4  # of the size, one part in so many


@dataclass(frozen=True, slots=True)
class Trace:
    """One trace's JSON, taken apart."""

    head: dict[str, Any]
    """All but the events; `traceEvents` holds the metadata events, which name processes and threads."""
    data: bytes
    start: int
    """Where in `data` the events begin."""
    end: int

    @property
    def size(self) -> int:
        """The events' bytes."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Events:
    """Events' JSON, joined by commas."""

    data: bytes
    hidden: int = 0
    """How many were taken out."""
    total: int = 0
    """How many there were, when some were taken out; a counter's entries count as one each."""


def take_apart(data: bytes) -> Trace:
    """Splits a trace's JSON.

    Raises:
        ValueError: it is not as xprof 2.24.2 writes it.
    """
    begin = data.index(_EVENTS) + len(_EVENTS)
    end = data.rindex(_EVENTS_END)
    first = _EVENT.search(data, begin, end)
    start = first.start() if first else end
    head: dict[str, Any] = json.loads(data[:start].rstrip(b",") + data[end:])
    return Trace(head, data, start, end)


def thin(trace: Trace, max_bytes: int) -> Events:
    """The trace's events, or if they are larger than `max_bytes` those of them that show most.

    Every row of the timeline keeps its longest event, then the longest of each 1/8 of the time, of each 1/64 and so on,
    then the second longest ones, as far as the size goes. Both ends of an asynchronous event stay or go together.
    Counters keep entries at even distances.
    """
    if trace.size <= max_bytes:
        return Events(trace.data[trace.start : trace.end])
    found = _Found(trace)
    view = memoryview(trace.data)
    keep, counters, hidden, total = found.choose(max_bytes)
    pieces: list[bytes | memoryview] = list(counters)
    for first, last in runs(keep):
        pieces.append(view[found.starts[first] : found.ends[last - 1]])
    return Events(b",".join(pieces), hidden, total)


class _Found:
    """Where a trace's events are, and what decides which of them stay."""

    def __init__(self, trace: Trace) -> None:
        starts, rows, items = array("q"), array("q"), array("q")
        times, lengths = array("d"), array("d")
        counters: list[int] = []
        known_rows: dict[tuple[bytes | None, ...], int] = {}
        pairs: dict[tuple[bytes | None, ...], int] = {}
        for number, match in enumerate(_EVENT.finditer(trace.data, trace.start, trace.end)):
            pid, tid, time, length, pair = match.groups()
            starts.append(match.start())
            rows.append(known_rows.setdefault((pid, tid), len(known_rows)))
            items.append(number if pair is None else pairs.setdefault((pid, pair), number))
            if time is None:
                counters.append(number)
            times.append(float(time or 0))
            lengths.append(float(length or 0))
        self._data = trace.data
        self.starts: npt.NDArray[np.int64] = np.frombuffer(starts, dtype=np.int64)
        self.ends = np.append(self.starts[1:] - 1, trace.end)
        self._rows = np.frombuffer(rows, dtype=np.int64)
        self._items = np.frombuffer(items, dtype=np.int64)
        self._times = np.frombuffer(times, dtype=np.float64)
        self._lengths = np.frombuffer(lengths, dtype=np.float64).copy()
        self._counters = counters
        if pairs:
            # The first of a pair stands for both: from its time to the last one's.
            np.maximum.at(self._lengths, self._items, self._times - self._times[self._items])

    def choose(self, max_bytes: int) -> tuple[npt.NDArray[np.bool_], list[bytes], int, int]:
        """Which events stay, the counters' JSON, how many events were taken out, and of how many."""
        counters, hidden, total = self._thin_counters(max_bytes // _COUNTERS_SHARE)
        room = max_bytes - sum(len(counter) + 1 for counter in counters)
        sizes = (self.ends - self.starts + 1).astype(np.float64)
        item_sizes = np.bincount(self._items, weights=sizes, minlength=len(sizes))
        leads = self._items == np.arange(len(self._items))
        leads[self._counters] = False
        candidates = np.flatnonzero(leads)
        order = candidates[self._by_worth(candidates)]
        kept_items = np.zeros(len(sizes), dtype=np.bool_)
        kept_items[order[np.cumsum(item_sizes[order]) <= room]] = True
        keep = kept_items[self._items]
        events = len(keep) - len(self._counters)
        return keep, counters, hidden + events - int(keep.sum()), total + events

    def _by_worth(self, candidates: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The order in which events are kept, as positions in `candidates`."""
        times, lengths = self._times[candidates], self._lengths[candidates]
        worth = np.zeros(len(times), dtype=np.int64)
        if not len(times):
            return worth
        first = times.min()
        for finer, parts in enumerate(reversed(_PARTS)):
            width = max((times.max() - first) / parts, 1e-9)
            places = self._rows[candidates] * (parts + 1) + ((times - first) / width).astype(np.int64)
            order = np.lexsort((-lengths, places))
            sorted_places = places[order]
            longest = np.flatnonzero(np.concatenate(([True], sorted_places[1:] != sorted_places[:-1])))
            if finer == 0:
                ranks = np.arange(len(order)) - np.repeat(longest, np.diff(np.append(longest, len(order))))
                worth[order] = len(_PARTS) + ranks
            worth[order[longest]] = len(_PARTS) - 1 - finer
        return np.lexsort((-lengths, worth))

    def _thin_counters(self, max_bytes: int) -> tuple[list[bytes], int, int]:
        counters = [self._data[self.starts[number] : self.ends[number]] for number in self._counters]
        size = sum(len(counter) + 1 for counter in counters)
        stride = max(-(-size // max(max_bytes, 1)), 1)
        thinned, hidden, total = [], 0, 0
        for counter in counters:
            begin = counter.index(_ENTRIES) + len(_ENTRIES)
            # Entries are `[time,value]`; each of these is where the next one begins.
            cuts = array("q", (match.start() + 2 for match in _NEXT_ENTRY.finditer(counter, begin)))
            entries = np.concatenate(([begin], cuts, [len(counter) - 1])).astype(np.int64)
            count = len(entries) - 1
            total += count
            if stride > 1:
                kept = range(0, count, stride)
                hidden += count - len(kept)
                values = (counter[entries[n] : entries[n + 1]].rstrip(b",]") + b"]" for n in kept)
                counter = counter[:begin] + b",".join(values) + b"]}"
            thinned.append(counter)
        return thinned, hidden, total
