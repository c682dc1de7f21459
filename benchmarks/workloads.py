"""What is measured: large sessions made from real profiles."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.generate import SUFFIX, generate_session
from hosting.demo import capture_demo_session

PROFILES = Path(__file__).parent.parent.parent / "shared" / "profiles"
GPU = PROFILES / "gpu_multi_worker" / "34.83.195.179_6003.xplane.pb"
TPU = PROFILES / "tpu_inference" / "tpu_inference_2.xplane.pb"

# Name, source, hosts, megabytes per host; the most telling ones first.
_LARGE = (
    ("GPU 1x79 MB", GPU, 1, 79),
    ("TPU 1x81 MB", TPU, 1, 81),
    ("TPU 4x40 MB", TPU, 4, 40),
    ("GPU 4x40 MB", GPU, 4, 40),
    ("GPU 16x20 MB", GPU, 16, 20),
)
_SMALL = (("TPU 2x8 MB", TPU, 2, 8), ("GPU 2x8 MB", GPU, 2, 8))


@dataclass(frozen=True, slots=True)
class Workload:
    """A session to measure: its name in the tables and a folder with one XPlane file per host."""

    name: str
    folder: Path
    source: Path
    """The profile it was made from."""

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(sorted(name_of_host(file) for file in host_files(self.folder)))


def host_files(folder: Path) -> list[Path]:
    """A session folder's XPlane files."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def name_of_host(file: Path) -> str:
    return file.name.removesuffix(SUFFIX)


def make_workloads(folder: Path, quick: bool, wanted: Callable[[str], bool] = lambda name: True) -> list[Workload]:
    """Writes the sessions whose names are wanted below `folder`, unless they are there.

    Two small ones when `quick`; one when only a CPU capture can be had.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known: Sequence[tuple[str, Path, int, int]] = _SMALL if quick else _LARGE
    if not (GPU.is_file() and TPU.is_file()):
        print(f"{PROFILES} is missing: measuring on a capture from the CPU instead.", flush=True)
        capture = capture_demo_session(folder / "captured") / f"demo-host-0{SUFFIX}"
        known = [("CPU 2x8 MB", capture, 2, 8)]
    workloads = []
    for name, source, hosts, megabytes in known:
        if not wanted(name):
            continue
        out = folder / name.replace(" ", "_")
        session = out / "plugins" / "profile" / "source"
        if len(host_files(session)) != hosts:
            generate_session(source, out, [f"host-{i}" for i in range(hosts)], megabytes=megabytes, session="source")
        workloads.append(Workload(name, session, source))
    return workloads


def link_session(workload: Workload, logdir: Path, session: str) -> str:
    """Adds a session to a log folder by hard links and returns its name as the servers list it.

    A link changes its file's change time, by which this service knows a file: all links first, then the servers.
    """
    files = {name_of_host(file): file for file in host_files(workload.folder)}
    return link_hosts(files, logdir, workload.name.replace(" ", "_"), session)


def link_hosts(files: dict[str, Path], logdir: Path, run: str, session: str) -> str:
    """The same for given files by the names of the hosts that they are to be."""
    folder = logdir / run / "plugins" / "profile" / session
    folder.mkdir(parents=True)
    for host, file in files.items():
        try:
            os.link(file, folder / f"{host}{SUFFIX}")
        except OSError:
            (folder / f"{host}{SUFFIX}").write_bytes(file.read_bytes())
    return f"{run}/{session}"
