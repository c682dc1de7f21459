"""The XSpace scan accepts every whole profile and says what is wrong with everything else."""

from __future__ import annotations

import gzip
import os
import tempfile
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.xplane_proto import XSpace
from loaders.errors import AccessDenied, InvalidProfile, NotFound, ProfileTooLarge
from loaders.xspace_scan import XSpaceSummary, scan_xspace

SHARED = Path(__file__).resolve().parents[3] / "shared" / "profiles"


def _small_space(planes: tuple[str, ...] = ("/device:TPU:0", "/host:CPU", "Task Environment")) -> bytes:
    space = XSpace(hostnames=["worker-0.pod:6003"], warnings=["dropped 3 events"])
    for number, name in enumerate(planes):
        plane = space.planes.add(id=number, name=name)
        plane.event_metadata[-7_000_000_000_000_000_000 - number].name = "fusion.1 " + "x" * 300
        plane.stat_metadata[1].name = "hlo_module"
        plane.stats.add(metadata_id=1, str_value="jit_f(1)")
        for line_number in range(number):
            line = plane.lines.add(id=line_number, name=f"line {line_number}", timestamp_ns=10**18)
            for event_number in range(20):
                line.events.add(metadata_id=1, offset_ps=event_number * 1000, duration_ps=900)
    return bytes(space.SerializeToString(deterministic=True))


SMALL = _small_space()


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _top_level_ends(data: bytes) -> list[int]:
    """Where an XSpace may end without being cut: after each of its fields."""
    ends = []
    position = 0
    while position < len(data):
        position += 1
        length = shift = 0
        while True:
            byte = data[position]
            position += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        position += length
        ends.append(position)
    return ends


def _scan(tmp_path: Path, data: bytes) -> XSpaceSummary:
    path = tmp_path / "host-0.xplane.pb"
    path.write_bytes(data)
    return scan_xspace(path)


def _problem(tmp_path: Path, data: bytes) -> str:
    with pytest.raises(InvalidProfile) as caught:
        _scan(tmp_path, data)
    assert caught.value.message.startswith("host-0.xplane.pb ")
    return caught.value.message


def test_a_whole_profile_is_summarised(tmp_path: Path) -> None:
    assert _scan(tmp_path, SMALL) == XSpaceSummary(
        bytes=len(SMALL),
        planes=("/device:TPU:0", "/host:CPU", "Task Environment"),
        lines=3,
        hostnames=("worker-0.pod:6003",),
    )


@pytest.mark.parametrize(
    ("file", "planes", "lines", "hostnames"),
    [
        ("gpu_multi_worker/34.83.195.179_6003.xplane.pb", 9, 37, ("34.83.195.179:6003",)),
        ("tpu_inference/tpu_inference_2.xplane.pb", 7, 142, ()),
    ],
)
def test_real_profiles_are_whole_and_their_truncations_are_not(
    tmp_path: Path, file: str, planes: int, lines: int, hostnames: tuple[str, ...]
) -> None:
    path = SHARED / file
    if not path.exists():
        pytest.skip(f"{file} is not in ../shared/profiles; the same is checked on a made profile")
    summary = scan_xspace(path)
    assert (len(summary.planes), summary.lines, summary.hostnames) == (planes, lines, hostnames)
    assert "/host:CPU" in summary.planes
    data = path.read_bytes()
    boundaries = set(_top_level_ends(data))
    cuts = [len(data) * tenth // 10 for tenth in range(1, 10)]
    for cut in cuts:
        assert cut not in boundaries
        assert "is truncated" in _problem(tmp_path, data[:cut])


def test_a_truncated_file_names_the_plane_and_the_missing_bytes(tmp_path: Path) -> None:
    space = XSpace()
    space.planes.add(name="/host:CPU")
    space.planes.add(name="/device:TPU:0").stats.add(metadata_id=1, str_value="y" * 5000)
    data = space.SerializeToString()
    message = _problem(tmp_path, data[:-1234])
    assert message == (
        "host-0.xplane.pb is truncated: it ends in the middle of plane '/device:TPU:0', 1,234 bytes missing."
        " Copy it again from where it was captured."
    )


def test_a_plane_cut_before_its_name_is_numbered(tmp_path: Path) -> None:
    first = _field(1, _field(2, b"/host:CPU"))
    message = _problem(tmp_path, first + b"\x0a\x80\x08\x08")
    assert "is truncated: it ends in the middle of its plane number 2, 1,023 bytes missing." in message


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    assert "is empty (0 bytes)" in _problem(tmp_path, b"")


def test_a_space_without_planes_is_no_profile(tmp_path: Path) -> None:
    assert "contains no planes" in _problem(tmp_path, XSpace(hostnames=["h"]).SerializeToString())


def _zip_bytes(tmp_path: Path) -> bytes:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x.xplane.pb", SMALL)
    return (tmp_path / "a.zip").read_bytes()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (gzip.compress(SMALL), "a gzip file"),
        (b'\n{"traceEvents": []}', "JSON"),
        (b"  [1, 2, 3]", "JSON"),
        (b"<!DOCTYPE html><html><body>Sign in</body></html>", "HTML"),
        (b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>", "XML"),
        (b"just some notes\n" * 1000, "text"),
        ("Zählung überall ".encode() * 300, "text"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12\n", "a Git LFS pointer"),
        (b"\x28\xb5\x2f\xfd" + bytes(40), "a Zstandard file"),
    ],
)
def test_a_foreign_file_is_called_what_it_looks_like(tmp_path: Path, data: bytes, kind: str) -> None:
    assert f"is not an XSpace: it looks like {kind}" in _problem(tmp_path, data)


def test_a_zip_archive_is_called_one(tmp_path: Path) -> None:
    assert "looks like a zip archive" in _problem(tmp_path, _zip_bytes(tmp_path))


NAMED = _field(2, b"/host:CPU")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x0b\x01\x02", "is not an XSpace: at byte 0 there is a field 1 of wire type 3"),
        (b"\x0f" + SMALL, "at byte 0 there is a field 1 of wire type 7"),
        (_field(1, NAMED) + b"\x00\x01", "is corrupt: at byte 13 there is a field 0 of wire type 0"),
        (_field(1, NAMED) + _field(900, b"x"), "is corrupt: at byte 13 there is a field 900 of wire type 2"),
        (b"\x08\x01", "is not an XSpace: at byte 0 there is a field 1 of wire type 0"),
        (_field(1, NAMED + b"\x1d\0\0\0\0"), "is corrupt: at byte 13 there is a field 3 of wire type 5"),
        (_field(1, NAMED + _field(77, b"")), "is corrupt: at byte 13 there is a field 77 of wire type 2"),
        (
            _field(1, NAMED + b"\x22\x05ab"),
            "in plane '/host:CPU' the field at byte 13 ends at byte 20, but the plane at byte 17",
        ),
        (_field(1, NAMED + b"\x22"), "the field at byte 13 ends at byte 15, but the plane at byte 14"),
        (_field(1, NAMED + b"\x08") + _field(4, b"h"), "a field's header runs past its plane's end at byte 14"),
        (_field(1, NAMED + b"\x08" + b"\xff" * 11), "is longer than 10 bytes"),
        (_field(1, NAMED + b"\x08" + b"\xff" * 9 + b"\x02"), "does not fit 64 bits"),
        (_field(1, _field(2, b"\xff\xfe")), "a plane's name at byte 4 is not UTF-8"),
        (_field(1, NAMED) + _field(4, b"\xff"), "an XSpace's text at byte 15 is not UTF-8"),
        (_field(1, NAMED) + b"\x0a\xff\xff\xff\xff\xff\x01", "the field at byte 13 claims 68,719,476,735 bytes"),
        (_field(1, NAMED) + b"\x22\x64abc", "it ends in the middle of field 4 at byte 13, 97 bytes missing"),
        (_field(1, NAMED) + b"\x0a", "it ends in the middle of a field's header at byte 14"),
        (_field(1, NAMED) + b"\x0a\x80", "it ends in the middle of a field's header at byte 15"),
    ],
)
def test_a_corrupt_file_is_described_with_the_byte(tmp_path: Path, data: bytes, problem: str) -> None:
    assert problem in _problem(tmp_path, data)


def test_fields_that_a_newer_xplane_may_add_are_let_through(tmp_path: Path) -> None:
    newer = _field(1, NAMED + _field(7, b"new") + b"\x41" + bytes(8) + b"\x4d" + bytes(4)) + _field(5, b"new")
    assert _scan(tmp_path, newer).planes == ("/host:CPU",)


def test_a_negative_plane_id_of_ten_bytes_is_fine(tmp_path: Path) -> None:
    space = XSpace()
    space.planes.add(id=-1, name="/host:metadata").event_metadata[-5].name = "m"
    assert _scan(tmp_path, space.SerializeToString()).planes == ("/host:metadata",)


def test_two_gibibytes_are_refused_without_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "host-0.xplane.pb"
    with path.open("wb") as file:
        file.truncate(2**31)

    def unread(*_: object) -> bytes:
        raise AssertionError("the file was read")

    monkeypatch.setattr(os, "pread", unread)
    with pytest.raises(ProfileTooLarge, match=r"host-0.xplane.pb has 2,147,483,648 bytes; .* at most 2,147,483,647"):
        scan_xspace(path)


def test_what_is_not_there_not_readable_or_no_file_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"gone\.xplane\.pb"):
        scan_xspace(tmp_path / "gone.xplane.pb")
    pipe = tmp_path / "pipe.xplane.pb"
    os.mkfifo(pipe)
    with pytest.raises(InvalidProfile, match="not a regular file"):
        scan_xspace(pipe)
    with pytest.raises(InvalidProfile, match="not a regular file"):
        scan_xspace(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_access_denied(tmp_path: Path) -> None:
    path = tmp_path / "host-0.xplane.pb"
    path.write_bytes(SMALL)
    path.chmod(0)
    with pytest.raises(AccessDenied):
        scan_xspace(path)


def test_fields_across_read_windows_are_found(tmp_path: Path) -> None:
    # Headers of odd sizes around every multiple of the window, and payloads larger than several windows.
    plane = NAMED + b"".join(_field(4, bytes(size)) for size in (1, 127, 128, 16_383, 16_384)) * 150
    plane += _field(3, bytes(3_500_000)) + _field(6, b"z" * 300) * 20_000
    summary = _scan(tmp_path, _field(1, plane) + _field(1, _field(2, b"last")) + _field(4, b"h"))
    assert (summary.planes, summary.lines, summary.hostnames) == (("/host:CPU", "last"), 1, ("h",))


def test_eighty_megabytes_with_200_000_metadata_entries_take_less_than_half_a_second(tmp_path: Path) -> None:
    entry = _field(4, b"\x08\x01" + _field(2, b"x" * 390))
    path = tmp_path / "host-0.xplane.pb"
    path.write_bytes(_field(1, NAMED + entry * 200_000 + _field(3, bytes(100)) * 1000))
    assert path.stat().st_size > 79_000_000
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        assert scan_xspace(path).lines == 1000
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.5


@settings(max_examples=400, deadline=None)
@given(cut=st.integers(0, len(SMALL) - 1))
def test_any_truncation_inside_a_field_is_invalid(cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "host-0.xplane.pb"
        path.write_bytes(SMALL[:cut])
        if cut in _top_level_ends(SMALL):
            # What is left is a whole XSpace with fewer planes; no reader can tell.
            assert len(scan_xspace(path).planes) < 3 or cut > len(SMALL) - 60
        else:
            with pytest.raises(InvalidProfile):
                scan_xspace(path)


@settings(max_examples=400, deadline=None)
@given(data=st.binary(max_size=300))
def test_random_bytes_raise_nothing_but_invalid_profile(data: bytes) -> None:
    _scan_or_invalid(data)


@settings(max_examples=400, deadline=None)
@given(at=st.integers(0, len(SMALL) - 1), value=st.integers(0, 255))
def test_a_flipped_byte_raises_nothing_but_invalid_profile(at: int, value: int) -> None:
    damaged = bytearray(SMALL)
    damaged[at] = value
    _scan_or_invalid(bytes(damaged))


@settings(max_examples=200, deadline=None)
@given(body=st.binary(max_size=200), tail=st.binary(max_size=50))
def test_random_planes_raise_nothing_but_invalid_profile(body: bytes, tail: bytes) -> None:
    _scan_or_invalid(_field(1, body) + tail)


def _scan_or_invalid(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "host-0.xplane.pb"
        path.write_bytes(data)
        try:
            summary = scan_xspace(path)
        except InvalidProfile:
            return
        assert summary.bytes == len(data)
        assert summary.planes
