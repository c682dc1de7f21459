"""A skeleton lacks nothing but events; a file in which xprof may find requests is never said to have none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.xplane_proto import XSpace
from loaders.errors import ObjectChanged
from loaders.xspace_scan import xspace_layout
from loaders.xspace_skeleton import may_have_requests, write_skeleton
from tests.made_xspaces import COUNTER, add_events, events_space, inspected_spaces


def _skeleton(tmp_path: Path, space: Any) -> Any:
    source, target = tmp_path / "host.xplane.pb", tmp_path / "skeleton"
    source.write_bytes(space.SerializeToString())
    size = write_skeleton(source, xspace_layout(source), target)
    assert target.stat().st_size == size
    return XSpace.FromString(target.read_bytes())


def _may_have_requests(tmp_path: Path, space: Any) -> bool:
    source = tmp_path / "host.xplane.pb"
    source.write_bytes(space.SerializeToString())
    return may_have_requests(source, xspace_layout(source))


@pytest.mark.parametrize("name", inspected_spaces())
def test_a_skeleton_is_the_space_without_lines_unless_counters_are_in_them(tmp_path: Path, name: str) -> None:
    space = inspected_spaces()[name]
    skeleton = _skeleton(tmp_path, space)
    for plane in space.planes:
        if COUNTER not in [stat.name for stat in plane.stat_metadata.values()]:
            del plane.lines[:]
    assert skeleton == space


def test_a_real_profiles_skeleton_lacks_only_lines(tmp_path: Path, any_profile: Path) -> None:
    space = XSpace.FromString(any_profile.read_bytes())
    skeleton = _skeleton(tmp_path, space)
    assert skeleton.ByteSize() < space.ByteSize()
    assert sum(len(plane.lines) for plane in skeleton.planes) == 0
    for plane in space.planes:
        del plane.lines[:]
    assert skeleton == space


def test_metadata_between_and_behind_lines_is_kept(tmp_path: Path) -> None:
    first, second = events_space("/host:CPU", "work"), events_space("/host:CPU", "work")
    second.planes[0].event_metadata[2].name = "later"
    # Messages merge when their bytes are joined, and so do planes when their fields are.
    parts = first.planes[0].SerializeToString() + second.planes[0].SerializeToString()
    source = tmp_path / "host.xplane.pb"
    source.write_bytes(b"\x0a" + _length(parts) + parts)
    write_skeleton(source, xspace_layout(source), tmp_path / "skeleton")
    [plane] = XSpace.FromString((tmp_path / "skeleton").read_bytes()).planes
    assert {key: value.name for key, value in plane.event_metadata.items()} == {1: "work", 2: "later"}
    assert len(plane.lines) == 0


def test_a_name_across_two_pieces_is_found(tmp_path: Path) -> None:
    for shift in range(20, 90, 5):
        space = events_space("/device:TPU:0", "counters")
        space.planes[0].event_metadata[2].name = "x" * ((1 << 20) - shift)
        space.planes[0].stat_metadata[1].name = COUNTER
        assert len(_skeleton(tmp_path, space).planes[0].lines) == 1


@pytest.mark.parametrize(
    ("event", "stats"),
    [
        ("SessionRun", {"_r": 1}),
        ("BatchingSessionRun", {}),
        ("RunGraph", {}),
        ("TfrtModelRun", {}),
        ("ServingModelRun", {"_r": 1}),
        ("OrbaxServing::ProcessBatch", {}),
        ("ModelServerRequest_7", {"_r": 1}),
        ("of the user's own", {"_r": -1}),
    ],
)
def test_a_file_with_requests_may_have_them(tmp_path: Path, event: str, stats: dict[str, int]) -> None:
    assert _may_have_requests(tmp_path, events_space("/host:CPU", event, stats))
    other = events_space("/host:metadata", "work")
    add_events(other, "/host:CPU", event, stats)
    assert _may_have_requests(tmp_path, other)


@pytest.mark.parametrize(
    ("plane", "event", "stats"),
    [
        ("/host:CPU", "step", {"_r": 1}),
        ("/host:CPU", "step", {"_r": 1, "step_num": 4}),
        ("/host:CPU", "step", {"delta": -1}),
        ("/device:TPU:0", "SessionRun", {"_r": -1}),
        ("/host:python-tracer", "SessionRun", {}),
    ],
)
def test_a_file_without_requests_is_known_to_have_none(
    tmp_path: Path, plane: str, event: str, stats: dict[str, int]
) -> None:
    assert not _may_have_requests(tmp_path, events_space(plane, event, stats))


def test_real_profiles_at_hand_have_no_requests(any_profile: Path) -> None:
    assert not may_have_requests(any_profile, xspace_layout(any_profile))


def test_a_file_that_shrank_since_its_scan_has_changed(tmp_path: Path) -> None:
    source = tmp_path / "host.xplane.pb"
    source.write_bytes(events_space("/host:CPU", "work").SerializeToString())
    layout = xspace_layout(source)
    source.write_bytes(source.read_bytes()[:20])
    with pytest.raises(ObjectChanged, match=r"host\.xplane\.pb shrank"):
        write_skeleton(source, layout, tmp_path / "skeleton")
    with pytest.raises(ObjectChanged):
        may_have_requests(source, layout)


def _length(data: bytes) -> bytes:
    # Two bytes are enough here.
    assert 0x80 <= len(data) < 0x4000
    return bytes([len(data) & 0x7F | 0x80, len(data) >> 7])
