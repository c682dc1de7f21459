"""What is measured: large sessions made from real profiles."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from benchmarks.generate import SUFFIX, generate_session
from hosting.demo import capture_demo_session

PROFILES = Path(__file__).parent.parent.parent / "shared" / "profiles"
GPU = PROFILES / "gpu_multi_worker" / "34.83.195.179_6003.xplane.pb"
TPU = PROFILES / "tpu_inference" / "tpu_inference_2.xplane.pb"


@dataclass(frozen=True, slots=True)
class Workload:
    """A session to measure: its name in the tables and a folder with one XPlane file per host."""

    name: str
    folder: Path

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(sorted(file.name.removesuffix(SUFFIX) for file in self.folder.iterdir()))


def make_workloads(folder: Path, quick: bool) -> list[Workload]:
    """Writes the sessions below `folder`; a single small one when `quick` or when only a CPU capture can be had."""
    if GPU.is_file() and TPU.is_file():
        wanted = [("GPU 1x79 MB", GPU, 1, 79), ("TPU 1x81 MB", TPU, 1, 81), ("TPU 4x40 MB", TPU, 4, 40)]
        if quick:
            wanted = [("TPU 2x8 MB", TPU, 2, 8)]
    else:
        print(f"{PROFILES} is missing: measuring on a capture from the CPU instead.", flush=True)
        source = capture_demo_session(folder) / f"demo-host-0{SUFFIX}"
        wanted = [("CPU 2x8 MB", source, 2, 8)]
    workloads = []
    for name, source, hosts, megabytes in wanted:
        names = [f"host-{index}" for index in range(hosts)]
        out = folder / name.replace(" ", "_")
        workloads.append(Workload(name, generate_session(source, out, names, megabytes=megabytes, session="source")))
    return workloads


def link_session(workload: Workload, logdir: Path, session: str) -> str:
    """Adds a session to a log folder by hard links and returns its name as the servers list it."""
    run = workload.name.replace(" ", "_")
    folder = logdir / run / "plugins" / "profile" / session
    folder.mkdir(parents=True)
    for file in workload.folder.iterdir():
        os.link(file, folder / file.name)
    return f"{run}/{session}"
