"""What an XSpace says beside its events: a small copy for xprof's inspection, and whether it may hold requests.

Nearly all of a large XPlane file is events, and some of xprof's questions do not concern them. The facts here are
those of xprof 2.24.2, and where there is doubt, the whole file counts:

- `tool_names` (`xplane_to_tool_names.cc`, `xplane_to_hlo.cc`, `xplane_to_dcn_collective_stats.cc`) reads the planes'
  names, the HLO protos in the metadata of `/host:metadata`, the names of `/host:CPU`'s event metadata, and of events
  only whether one of a TPU plane has a stat named `counter_value`.
- The overview of a program that is not training reads an XSpace again for its requests' latency
  (`inference_stats.cc`). Requests are events of `/host:CPU` that have one of five names, or a stat `_r` (a root) that
  is -1, or is 1 in an event named `ModelServerRequest_…`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from loaders.errors import ObjectChanged
from loaders.xspace_scan import PlaneLayout, XSpaceLayout

_PIECE: Final = 1 << 20
_HOST_PLANE: Final = "/host:CPU"
_PLANES_TAG: Final = b"\x0a"
# Longer than anything that is looked for, so that nothing is missed between two pieces.
_OVERLAP: Final = 64
_COUNTERS: Final = re.compile(rb"counter_value")
# SessionRun, BatchingSessionRun, RunGraph, TfrtModelRun, ServingModelRun; ProcessBatch comes with the batches of such.
_REQUESTS: Final = re.compile(rb"SessionRun|RunGraph|ModelRun|ProcessBatch|ModelServerRequest_")
# A text of two bytes, "_r", in any field: an XStatMetadata's name.
_ROOTS: Final = re.compile(rb"\x02_r")
# XStat.int64_value = -1, whatever its metadata.
_MINUS_ONE: Final = re.compile(rb"\x20\xff{9}\x01")


def write_skeleton(source: Path, layout: XSpaceLayout, target: Path) -> int:
    """Copies everything but events to `target`, of which xprof's inspection says the same; returns the copy's bytes.

    Planes whose events the inspection may read keep their lines. Needs about a megabyte of memory.

    Raises:
        ObjectChanged: the source is no longer what the layout was made of.
    """
    with source.open("rb", buffering=0) as file, target.open("wb") as copy:
        for plane in layout.planes:
            ranges = [(plane.start, plane.end)] if _has_counters(file, plane) else list(_metadata(plane))
            copy.write(_PLANES_TAG + _varint(sum(end - start for start, end in ranges)))
            for piece in _pieces(file, ranges):
                copy.write(piece)
        for piece in _pieces(file, layout.others):
            copy.write(piece)
        return copy.tell()


def may_have_requests(source: Path, layout: XSpaceLayout) -> bool:
    """Whether xprof may find inference requests in the file: if not, it adds nothing to an overview's latencies.

    Raises:
        ObjectChanged: the source is no longer what the layout was made of.
    """
    with source.open("rb", buffering=0) as file:
        return any(_may_have_requests(file, plane) for plane in layout.planes if plane.name == _HOST_PLANE)


def _may_have_requests(file: BinaryIO, plane: PlaneLayout) -> bool:
    metadata = list(_metadata(plane))
    if _mentions(file, metadata, _REQUESTS):
        return True
    return _mentions(file, metadata, _ROOTS) and _mentions(file, [(plane.start, plane.end)], _MINUS_ONE)


def _has_counters(file: BinaryIO, plane: PlaneLayout) -> bool:
    return _mentions(file, _metadata(plane), _COUNTERS)


def _metadata(plane: PlaneLayout) -> Iterator[tuple[int, int]]:
    """The plane's bytes less its lines."""
    position = plane.start
    for start, end in plane.lines:
        if position < start:
            yield position, start
        position = end
    if position < plane.end:
        yield position, plane.end


def _mentions(file: BinaryIO, ranges: Iterable[tuple[int, int]], pattern: re.Pattern[bytes]) -> bool:
    before = b""
    for piece in _pieces(file, ranges):
        if pattern.search(before + piece):
            return True
        before = (before + piece)[-_OVERLAP:]
    return False


def _pieces(file: BinaryIO, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    for position, end in ranges:
        while position < end:
            piece = os.pread(file.fileno(), min(_PIECE, end - position), position)
            if not piece:
                raise ObjectChanged(f"{Path(file.name).name} shrank while it was read. Try again when it is whole.")
            yield piece
            position += len(piece)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(encoded + bytes([value]))
