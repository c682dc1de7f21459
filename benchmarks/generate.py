"""Makes large sessions of several hosts from one real profile.

    python -m benchmarks.generate SOURCE.xplane.pb OUT_DIR --hosts 4 --megabytes 40 [--session NAME]

The events of every line are repeated, each time shifted by the profile's span, until a host's file has the size asked
for; every host gets one copy under `OUT_DIR/plugins/profile/<session>/<host>.xplane.pb`, with its name in `hostnames`.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.xplane_proto import XSpace

SUFFIX = ".xplane.pb"
_PS_PER_NS = 1000
_MEGABYTE = 1_000_000


def generate_session(
    source: Path,
    out: Path,
    hosts: Sequence[str],
    megabytes: float | None = None,
    session: str = "generated",
) -> Path:
    """Write a session of `hosts` made from the XPlane file `source`, and return its folder.

    Each host's file has about `megabytes` million bytes, but at least as many as the source; None copies the source
    byte for byte. Files appear whole, and the same input gives the same bytes.

    Raises:
        ValueError: a source without events cannot grow.
        FileExistsError: one of the files is there already.
    """
    folder = out / "plugins" / "profile" / session
    folder.mkdir(parents=True, exist_ok=True)
    space = None if megabytes is None else _space_of_size(source, megabytes)
    body = b"" if space is None else _without_hostnames(space).SerializeToString(deterministic=True)
    for host in hosts:
        target = folder / (host + SUFFIX)
        if target.exists():
            raise FileExistsError(f"{target} exists already; choose another session name or remove it")
        partial = folder / f".{host}.part"
        if space is None:
            shutil.copyfile(source, partial)
        else:
            with partial.open("wb") as file:
                # Serialized messages of one kind merge by concatenation: the planes need serializing only once.
                file.write(body)
                file.write(XSpace(hostnames=[host]).SerializeToString())
        partial.rename(target)
    return folder


def repeat_events(space: Any, times: int) -> None:
    """Let every line's events happen `times` times, one after the other at distances of the profile's span, in place.

    Aggregated events (with `num_occurrences` instead of an offset) stay as they are.
    """
    span = span_ps(space)
    for plane in space.planes:
        for line in plane.lines:
            shiftable = [event for event in line.events if not event.HasField("num_occurrences")]
            if not shiftable:
                continue
            originals = type(line)(events=shiftable).events
            for number in range(1, times):
                first = len(line.events)
                line.events.extend(originals)
                for event in line.events[first:]:
                    event.offset_ps += number * span
            if line.duration_ps:
                line.duration_ps += (times - 1) * span


def span_ps(space: Any) -> int:
    """How long the profile lasts, in picoseconds: as long as its longest plane, since planes differ in their zeros."""
    return max((_plane_span(plane) for plane in space.planes), default=0)


def _plane_span(plane: Any) -> int:
    start: int | None = None
    end = 0
    for line in plane.lines:
        zero = line.timestamp_ns * _PS_PER_NS
        for event in line.events:
            if event.HasField("num_occurrences"):
                continue
            begins = zero + event.offset_ps
            start = begins if start is None else min(start, begins)
            end = max(end, begins + event.duration_ps)
    return 0 if start is None else end - start


def _space_of_size(source: Path, megabytes: float) -> Any:
    data = source.read_bytes()
    once = XSpace.FromString(data)
    wanted = megabytes * _MEGABYTE
    size = once.ByteSize()
    if wanted <= size:
        return once
    # Repeated events are larger than the first ones, as their offsets are: measure what a few repetitions cost.
    probe_times = 5
    probe = XSpace.FromString(data)
    repeat_events(probe, probe_times)
    per_repetition = (probe.ByteSize() - size) / (probe_times - 1)
    if per_repetition <= 0:
        raise ValueError(f"{source} has no events that could be repeated")
    repeat_events(once, max(1, round(1 + (wanted - size) / per_repetition)))
    return once


def _without_hostnames(space: Any) -> Any:
    del space.hostnames[:]
    return space


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generate", description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=Path, help="a real profile, <host>.xplane.pb")
    parser.add_argument("out", type=Path, help="the folder to make plugins/profile/<session> in")
    parser.add_argument("--hosts", type=int, default=1, help="how many hosts (default 1)")
    parser.add_argument("--megabytes", type=float, help="size of each host's file (default: plain copies)")
    parser.add_argument("--session", default="generated", help="the session's name (default: generated)")
    options = parser.parse_args(arguments)
    hosts = [f"host-{number}" for number in range(options.hosts)]
    folder = generate_session(options.source, options.out, hosts, options.megabytes, options.session)
    for file in sorted(folder.glob("*" + SUFFIX)):
        print(f"{file}  {file.stat().st_size / _MEGABYTE:.1f} MB")


if __name__ == "__main__":
    main()
