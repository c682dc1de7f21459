"""A whole XSpace of a few dozen bytes, encoded by hand, for the self-test that decides whether a shard is ready."""

from __future__ import annotations


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def tiny_xspace(event: str = "self-test-event", plane: str = "/host:CPU", hostname: str = "self-test") -> bytes:
    """One plane with one line and one event of 1 ms.

    Field numbers are those of tsl's `xplane.proto`: XSpace{planes=1, hostnames=4}, XPlane{id=1, name=2, lines=3,
    event_metadata=4}, XLine{id=1, name=2, timestamp_ns=3, events=4}, XEvent{metadata_id=1, offset_ps=2, duration_ps=3},
    XEventMetadata{id=1, name=2}.
    """
    line = _number(1, 1) + _bytes(2, b"thread") + _number(3, 1_000_000_000)
    line += _bytes(4, _number(1, 1) + _number(2, 0) + _number(3, 1_000_000_000))
    metadata = _number(1, 1) + _bytes(2, _number(1, 1) + _bytes(2, event.encode()))
    content = _number(1, 1) + _bytes(2, plane.encode()) + _bytes(3, line) + _bytes(4, metadata)
    return _bytes(1, content) + _bytes(4, hostname.encode())
