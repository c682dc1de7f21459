"""A converted trace in small blocks, so that a window of it is read without the rest.

XProf's tables have blocks of 20 MB, compressed, in order of an event's level (the coarsest resolution, of powers of ten
from 1 s down, at which it shows) and its time. For a window, however small, xprof uncompresses a block per level and
goes through all events of the first level from the beginning of the trace, since any of them may reach into the window:
90 ms of an 80 MB TPU profile. From the small blocks, a table of those that the window needs is put together in
milliseconds; xprof answers from it as it would from the whole one.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from xprof.protobuf import trace_events_pb2

from loaders.engines.runs import runs
from loaders.engines.sorted_table import TRAILER_BYTES, TableWriter, entries, entries_end, read_blocks, split
from loaders.engines.tasks import TRACE_SUFFIXES, WINDOW_SUFFIXES, ToolTask

BLOCK_BYTES: Final = 32 << 10
MAX_WINDOW_BYTES: Final = 24 << 20
"""A window that needs more takes longer to make into an answer than to read."""

_LEVELS: Final = b"123456789ABCD"
_FIRST_LEVEL_PS: Final = 10**12
_PS_PER_MS: Final = 10**9
_MARGIN_PS: Final = 10**3
_KEY_BYTES: Final = 10  # the level's letter, the time in ps (8 bytes, big endian), and a number among equal times
_NEVER: Final = (1 << 63) - 1
# Lengths are read event by event. With more of them it would take seconds, and blocks count as reaching to the end.
_MAX_LENGTHS: Final = 2_000_000

_INDEX: Final = np.dtype(
    [
        ("offset", "<i8"),
        ("size", "<i8"),
        ("first_level", "<i8"),
        ("first_time", "<i8"),
        ("last_level", "<i8"),
        ("last_time", "<i8"),
        ("until", "<i8"),  # the end of the last event, in ps
        ("last_key", "u1", (_KEY_BYTES,)),
    ]
)


def make_blocks(folder: Path, host: str) -> None:
    """Writes a host's trace in small blocks beside its tables, with an index of them.

    Raises:
        ValueError: the table is not as xprof 2.24.2 writes it.
    """
    rows = []
    lengths = 0
    with (folder / f"{host}{WINDOW_SUFFIXES[0]}").open("wb") as file:
        writer = TableWriter(file)
        for block, last_key in read_blocks(folder / f"{host}{TRACE_SUFFIXES[0]}"):
            for part, first, last in split(block, last_key, BLOCK_BYTES):
                offset, size = writer.add(part)
                (first_level, first_time), (last_level, last_time) = _place(first), _place(last)
                until = _NEVER
                if first_level == last_level == 0 and lengths < _MAX_LENGTHS:
                    until, count = _until(part)
                    lengths += count
                spelled = np.frombuffer(last.ljust(_KEY_BYTES, b"\0"), dtype=np.uint8)
                rows.append((offset, size, first_level, first_time, last_level, last_time, until, spelled))
    np.save(folder / f"{host}{WINDOW_SUFFIXES[1]}", np.array(rows, dtype=_INDEX))


def cut_tables(task: ToolTask) -> None:
    """Cuts the tables of a task that asks converted traces for a window, or for one event, down to what it needs."""
    given = dict(task.parameters)
    start = given.get("start_time_ms")
    end = start if "event_name" in given else given.get("end_time_ms")
    # A search goes through the whole trace; and with every DMA shown, xprof adds events from outside of the window.
    if start is None or end is None or "search_prefix" in given or given.get("full_dma") == "true":
        return
    for host in task.hosts:
        cut_window(task.folder, host, float(start), float(end))


def cut_window(folder: Path, host: str, start_ms: float, end_ms: float) -> bool:
    """Puts in the place of a host's table one with the blocks that a window needs; False, and nothing done, where the
    small blocks are missing or the window needs most of them."""
    blocks, index_file = (folder / f"{host}{suffix}" for suffix in WINDOW_SUFFIXES)
    if not index_file.exists() or not blocks.exists():
        return False
    index = np.load(index_file)
    chosen = _needed(index, start_ms, end_ms)
    if index["size"][chosen].sum() > MAX_WINDOW_BYTES:
        return False
    table = folder / f"{host}{TRACE_SUFFIXES[0]}"
    # It is a link to what is kept.
    table.unlink()
    rows = index[chosen]
    with blocks.open("rb") as source, table.open("wb") as target:
        writer = TableWriter(target)
        for first, last in runs(chosen):
            begin = int(index["offset"][first])
            source.seek(begin)
            writer.copy(source.read(int(index["offset"][last - 1] + index["size"][last - 1]) + TRAILER_BYTES - begin))
        offsets = np.concatenate(([0], np.cumsum(rows["size"] + TRAILER_BYTES)[:-1]))
        keys = [bytes(key) for key in rows["last_key"]]
        writer.finish(zip(keys, offsets.tolist(), rows["size"].tolist(), strict=True))
    return True


def _needed(index: npt.NDArray[np.void], start_ms: float, end_ms: float) -> npt.NDArray[np.bool_]:
    """The blocks that xprof would read for the window; the last of all holds what is known of the whole trace."""
    start = max(math.floor(start_ms * _PS_PER_MS) - _MARGIN_PS, 0)
    end = min(math.ceil(end_ms * _PS_PER_MS) + _MARGIN_PS, _NEVER)
    of_events = index["first_level"] < len(_LEVELS)
    if start >= index["last_time"].max() or end <= index["first_time"][of_events].min(initial=_NEVER):
        # Beside the trace, where xprof makes a window of no length and shows everything in it.
        return np.ones(len(index), dtype=np.bool_)
    chosen = np.zeros(len(index), dtype=np.bool_)
    for level in range(len(_LEVELS)):
        # What shows first at a level is shorter than the resolution of the one before.
        begin = 0 if level == 0 else max(start - _FIRST_LEVEL_PS // 10 ** (level - 1), 0)
        late_enough = (index["last_level"] > level) | (
            (index["last_level"] == level) & (index["last_time"] >= begin) & (index["until"] >= start)
        )
        early_enough = (index["first_level"] < level) | ((index["first_level"] == level) & (index["first_time"] <= end))
        chosen |= late_enough & early_enough
    chosen |= index["last_level"] == len(_LEVELS)
    return chosen


def _place(key: bytes) -> tuple[int, int]:
    """A key's level and time in ps. That of the metadata, `trace`, comes after all levels."""
    if len(key) != _KEY_BYTES:
        return len(_LEVELS), 0
    return _LEVELS.index(key[:1]), int.from_bytes(key[1:9], "big")


def _until(block: bytes) -> tuple[int, int]:
    """When the last event of a block ends, and how many there are."""
    until = count = 0
    for key, begin, end in entries(block, 0, entries_end(block)):
        count += 1
        length: int = trace_events_pb2.TraceEvent.FromString(block[begin:end]).duration_ps
        until = max(until, int.from_bytes(key[1:9], "big") + length)
    return until, count
