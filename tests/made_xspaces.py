"""XSpaces made by hand, with what real profiles at hand do not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.xplane_proto import XSpace

COUNTER = "counter_value"


def events_space(plane: str, event: str, stats: Mapping[str, int] | None = None, *, stated: bool = True) -> Any:
    """An XSpace of one plane with five events of one name, each with the stats; `stated=False` only declares them."""
    space = XSpace(hostnames=["made"])
    add_events(space, plane, event, stats or {}, stated=stated)
    return space


def add_events(space: Any, plane_name: str, event: str, stats: Mapping[str, int], *, stated: bool = True) -> Any:
    """Adds such a plane to a space and returns it."""
    plane = space.planes.add(id=len(space.planes), name=plane_name)
    plane.event_metadata[1].id = 1
    plane.event_metadata[1].name = event
    for number, name in enumerate(stats, 1):
        plane.stat_metadata[number].id = number
        plane.stat_metadata[number].name = name
    line = plane.lines.add(id=1, name="a line", timestamp_ns=1000)
    for turn in range(5):
        made = line.events.add(metadata_id=1, offset_ps=turn * 10**9, duration_ps=5 * 10**8 + turn)
        for number, value in enumerate(stats.values(), 1):
            if stated:
                made.stats.add(metadata_id=number, int64_value=value)
    return plane


def add_programs(space: Any, programs: Mapping[str, bytes], stat: str = "Hlo Proto") -> None:
    """Adds the metadata plane with an HLO proto per program's name."""
    plane = space.planes.add(id=90, name="/host:metadata")
    plane.stat_metadata[7].id = 7
    plane.stat_metadata[7].name = stat
    for number, (name, proto) in enumerate(programs.items(), 11):
        plane.event_metadata[number].id = number
        plane.event_metadata[number].name = f"{name}({number})"
        plane.event_metadata[number].stats.add(metadata_id=7, bytes_value=proto)


def hlo_proto(module: str, padding: int = 0) -> bytes:
    """`HloProto{hlo_module=1{name=1, entry_computation_name=2}}` with a name of `padding` characters more."""
    content = _text(1, module) + _text(2, "e" * padding)
    return b"\x0a" + _varint(len(content)) + content


def _text(number: int, text: str) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(text)) + text.encode()


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(encoded + bytes([value]))


def inspected_spaces() -> dict[str, Any]:
    """One XSpace for each thing that xprof's inspection may find or overlook, by what is in it."""
    spaces = {
        "a host": events_space("/host:CPU", "work"),
        "MegaScale events": events_space("/host:CPU", "MegaScale: recv"),
        "MegaScale on another plane": events_space("/host:megascale", "MegaScale: recv"),
        "MegaScale within a name": events_space("/host:CPU", "not MegaScale: recv"),
        "counters of a TPU": events_space("/device:TPU:0", "counters", {COUNTER: 7}),
        "counters of a SparseCore": events_space("/device:TPU:0 SparseCore 0", "counters", {COUNTER: 7}),
        "counters that no event has": events_space("/device:TPU:0", "counters", {COUNTER: 7}, stated=False),
        "counters of a GPU": events_space("/device:GPU:0", "counters", {COUNTER: 7}),
        "a TPU": events_space("/device:TPU:0", "fusion", {"flops": 7}),
        "a GPU": events_space("/device:GPU:0", "kernel", {"correlation_id": 7}),
        "a custom device": events_space("/device:CUSTOM:x", "kernel"),
    }
    both = events_space("/device:TPU:0", "fusion", {"flops": 7})
    add_events(both, "/device:TPU:1", "counters", {COUNTER: 7})
    spaces["counters of the second TPU"] = both
    for name, programs, stat in (
        ("programs", {"jit_f": hlo_proto("jit_f"), "jit_g": hlo_proto("jit_g", 10)}, "Hlo Proto"),
        ("a large program", {"jit_h": hlo_proto("jit_h", 3 << 20)}, "Hlo Proto"),
        ("a damaged program", {"jit_f": b"\xff\xff", "jit_g": hlo_proto("jit_g")}, "Hlo Proto"),
        ("programs by their older name", {"jit_f": hlo_proto("jit_f")}, "HLO Proto"),
        ("a metadata plane without programs", {}, "something"),
    ):
        space = events_space("/host:CPU", "work")
        add_programs(space, programs, stat)
        spaces[name] = space
    return spaces
