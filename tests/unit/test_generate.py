"""Generated sessions are large, valid and true to the profile they are made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.generate import generate_session, main, repeat_events, span_ps
from benchmarks.xplane_proto import XSpace
from loaders.xspace_scan import scan_xspace

SHARED = Path(__file__).resolve().parents[3] / "shared" / "profiles"
REAL = ("gpu_multi_worker/34.83.195.179_6003.xplane.pb", "tpu_inference/tpu_inference_2.xplane.pb")


def _made_profile() -> Any:
    space = XSpace(hostnames=["original"])
    device = space.planes.add(id=2, name="/device:TPU:0")
    device.event_metadata[-5].name = "negative as int64"
    line = device.lines.add(id=1, name="XLA Ops", timestamp_ns=5, duration_ps=400)
    line.events.add(metadata_id=-5, offset_ps=100, duration_ps=50).stats.add(metadata_id=1, str_value="s")
    line.events.add(metadata_id=-5, offset_ps=300, duration_ps=100)
    line.events.add(metadata_id=-5, num_occurrences=7, duration_ps=9)
    host = space.planes.add(id=3, name="/host:CPU")
    host.lines.add(id=1, timestamp_ns=10**18).events.add(metadata_id=1, offset_ps=0, duration_ps=1000)
    host.lines.add(id=2, timestamp_ns=10**18)
    return space


def _source(tmp_path: Path) -> Path:
    path = tmp_path / "source.xplane.pb"
    path.write_bytes(_made_profile().SerializeToString())
    return path


@pytest.fixture(params=REAL)
def real_profile(request: pytest.FixtureRequest) -> Path:
    path = SHARED / str(request.param)
    if not path.exists():
        pytest.skip(f"{request.param} is not in ../shared/profiles; the same is checked on a made profile")
    return path


def test_events_repeat_at_distances_of_the_span_and_aggregates_do_not() -> None:
    space = _made_profile()
    assert span_ps(space) == 1000
    repeat_events(space, 3)
    line = space.planes[0].lines[0]
    assert [event.offset_ps for event in line.events if event.HasField("offset_ps")] == [
        *(100, 300),
        *(1100, 1300),
        *(2100, 2300),
    ]
    assert [event.num_occurrences for event in line.events if event.HasField("num_occurrences")] == [7]
    assert line.duration_ps == 2400
    assert [event.stats[0].str_value for event in line.events if event.stats] == ["s"] * 3
    assert [event.offset_ps for event in space.planes[1].lines[0].events] == [0, 1000, 2000]
    assert space.planes[0].event_metadata[-5].name == "negative as int64"


def test_the_written_down_proto_loses_nothing_of_a_real_profile(real_profile: Path) -> None:
    data = real_profile.read_bytes()
    space = XSpace.FromString(data)
    size = len(data)
    assert space.ByteSize() == size
    space.DiscardUnknownFields()
    assert space.ByteSize() == size


def test_a_session_has_the_size_asked_for_per_host_and_is_whole(tmp_path: Path, real_profile: Path) -> None:
    before = scan_xspace(real_profile)
    folder = generate_session(real_profile, tmp_path / "out", ["host-0", "host-1"], 12.0, "big")
    assert folder == tmp_path / "out" / "plugins" / "profile" / "big"
    assert sorted(file.name for file in folder.iterdir()) == ["host-0.xplane.pb", "host-1.xplane.pb"]
    for host in ("host-0", "host-1"):
        file = folder / f"{host}.xplane.pb"
        assert 0.85 * 12e6 < file.stat().st_size < 1.15 * 12e6
        summary = scan_xspace(file)
        assert (summary.planes, summary.lines, summary.hostnames) == (before.planes, before.lines, (host,))


def test_a_made_profile_grows_and_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    source = _source(tmp_path)
    first = generate_session(source, tmp_path / "1", ["a", "b"], 0.3, "s")
    second = generate_session(source, tmp_path / "2", ["a"], 0.3, "s")
    data = (first / "a.xplane.pb").read_bytes()
    assert 0.25e6 < len(data) < 0.35e6
    assert (second / "a.xplane.pb").read_bytes() == data
    assert (first / "b.xplane.pb").read_bytes() != data
    assert scan_xspace(first / "b.xplane.pb").hostnames == ("b",)


def test_without_a_size_every_host_gets_a_plain_copy(tmp_path: Path) -> None:
    source = _source(tmp_path)
    folder = generate_session(source, tmp_path / "out", ["a", "b(1)"], None, "s")
    for file in ("a.xplane.pb", "b(1).xplane.pb"):
        assert (folder / file).read_bytes() == source.read_bytes()


def test_nothing_is_overwritten_and_what_cannot_grow_is_refused(tmp_path: Path) -> None:
    source = _source(tmp_path)
    generate_session(source, tmp_path / "out", ["a"], None, "s")
    with pytest.raises(FileExistsError, match="another session name"):
        generate_session(source, tmp_path / "out", ["a"], None, "s")
    still = tmp_path / "still.xplane.pb"
    still.write_bytes(XSpace(planes=[{"name": "Task Environment"}]).SerializeToString())
    with pytest.raises(ValueError, match="no events"):
        generate_session(still, tmp_path / "out", ["b"], 1.0, "s")


def test_the_command_makes_numbered_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--hosts", "3", "--megabytes", "0.1", "--session", "2024 01"]
    main([str(_source(tmp_path)), str(tmp_path / "out"), *arguments])
    folder = tmp_path / "out" / "plugins" / "profile" / "2024 01"
    assert capsys.readouterr().out.splitlines() == [f"{folder}/host-{number}.xplane.pb  0.1 MB" for number in range(3)]


@pytest.mark.slow
def test_xprof_offers_the_same_tools_for_a_generated_session(tmp_path: Path, real_profile: Path) -> None:
    raw_to_tool_data = pytest.importorskip("xprof.convert.raw_to_tool_data")
    plain = generate_session(real_profile, tmp_path / "plain", ["host-0"], None, "s")
    large = generate_session(real_profile, tmp_path / "large", ["host-0"], 8.0, "s")
    tools = [raw_to_tool_data.xspace_to_tool_names([str(folder / "host-0.xplane.pb")]) for folder in (plain, large)]
    assert len(tools[0]) > 3
    assert tools[1] == tools[0]
