"""Compares the accelerated engine with the stock server, answer by answer, on real profiles.

    python -m benchmarks.parity [--write]

Every tool of every session is asked of the engine as the service asks it, and of `xprof server`; where all answers are
equal it is trusted. `--write` puts the outcome into the package as `loaders/engines/trust.json`, where it decides which
requests go to the accelerated engine; it wants the shared profiles, since a capture from the CPU shows too little.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.generate import SUFFIX, generate_session
from benchmarks.same_answer import same_answer
from benchmarks.servers import API, stock_server
from benchmarks.workloads import GPU, PROFILES, TPU
from benchmarks.xplane_proto import XSpace
from hosting.demo import capture_demo_session
from loaders.engines.accelerated import AcceleratedEngine, LinkedHost
from loaders.engines.tiny_xspace import tiny_xspace
from loaders.engines.trust import TABLE, TrustTable, Verdict, accelerated_binary, accelerated_version, case_of
from loaders.tools import ALL_HOSTS, TOOLS, Family, Tool, canonical_parameters, listed_hosts
from loaders.xspace_scan import scan_xspace

HOSTS_PER_TOOL: Final = 2
BLANK: Final = "blank/session"
SAMPLED: Final = frozenset({"memory_profile"})
"""Tools that draw from what they were given, so that no two answers have the same rows."""
_FREE: Final = "its parameters have more values than can be compared"

# The parameters that the UI sends and whose values are few enough to be compared one by one. The tools made from HLO
# protos take a module's name and are not compared.
VARIANTS: Final[dict[str, list[dict[str, str]]]] = {
    "op_profile": [{"group_by": "program"}, {"group_by": "category"}, {"group_by": "provenance"}],
    "trace_viewer@": [
        {"resolution": "3640"},
        {"resolution": "8000"},
        {"resolution": "3640", "start_time_ms": "1.5", "end_time_ms": "4.25"},
    ],
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One request to both."""

    session: str
    tool: str
    host: str
    parameters: tuple[tuple[str, str], ...]
    case: str
    refused: bool = False
    """The accelerated engine gave no answer."""
    telling: bool = False
    """The stock server's answer is another than for a session with nothing in it."""
    difference: str | None = None
    """None when both say the same, or when the engine refused."""


@dataclass(frozen=True, slots=True)
class Session:
    """A session to compare: its name as `run/session` and its hosts' files, where the accelerated engine reads them."""

    name: str
    files: tuple[Path, ...]

    @property
    def hosts(self) -> list[str]:
        return [path.name.removesuffix(SUFFIX) for path in self.files]


@dataclass
class _Tally:
    compared: int = 0
    telling: int = 0
    refused: int = 0
    parameters: dict[str, set[str]] = field(default_factory=dict)
    difference: str | None = None


_COMPARED: Final = tuple(name for name, tool in TOOLS.items() if tool.family is not Family.HLO)


def compare(root: Path, scratch: Path, tools: Collection[str] = _COMPARED) -> list[Comparison]:
    """Asks both about every session below `root`, which the stock server gets a copy of, and the tools of each.

    Raises:
        RuntimeError: the accelerated engine is not installed.
    """
    copy, links = scratch / "stock", scratch / "links"
    links.mkdir()
    shutil.copytree(root, copy, copy_function=os.link)
    blank = copy / "blank" / "plugins" / "profile" / "session"
    blank.mkdir(parents=True)
    (blank / f"host{SUFFIX}").write_bytes(tiny_xspace())
    found = sorted({path.parent for path in root.rglob(f"*{SUFFIX}")})
    sessions = [Session(_name(root, folder), tuple(sorted(folder.glob(f"*{SUFFIX}")))) for folder in found]
    with (
        stock_server(copy, scratch / "state") as server,
        httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=300) as stock,
    ):
        return asyncio.run(_compare_all(sessions, stock, links, tools))


def verdicts(comparisons: Iterable[Comparison]) -> dict[str, dict[str, Verdict]]:
    """What the comparisons say of each tool and case. What was never answered, or never with anything in it, is not
    trusted."""
    tallies: dict[str, dict[str, _Tally]] = {}
    for item in comparisons:
        tally = tallies.setdefault(item.tool, {}).setdefault(item.case, _Tally())
        tally.refused += item.refused
        if item.refused:
            continue
        tally.compared += 1
        tally.telling += item.telling
        for name, value in item.parameters:
            tally.parameters.setdefault(name, set()).add(value)
        if item.difference is not None and tally.difference is None:
            tally.difference = f"{item.session}, {item.host}: {item.difference}"[:300]
    for cases in tallies.values():
        for case, tally in cases.items():
            one = cases.get(case.replace("several hosts", "one host"))
            # What is wrong about one host is right about several by chance.
            tally.difference = tally.difference or (one.difference if one else None)
    return {
        tool: {case: _verdict(tool, tally) for case, tally in sorted(cases.items())}
        for tool, cases in sorted(tallies.items())
    }


def _verdict(tool: str, tally: _Tally) -> Verdict:
    difference = tally.difference
    if difference is None and tool.startswith("trace_viewer"):
        difference = _FREE
    return Verdict(
        trusted=tally.telling > 0 and difference is None,
        compared=tally.compared,
        telling=tally.telling,
        refused=tally.refused,
        parameters={name: sorted(values) for name, values in sorted(tally.parameters.items())},
        difference=difference,
    )


def small_sessions(root: Path, capture: Path, gpu: Path | None) -> None:
    """Makes sessions of one and two hosts below `root`, of a session captured from the CPU and of a GPU's profile."""
    files = sorted(capture.glob(f"*{SUFFIX}"))
    _session(root, "cpu", "one", files[:1])
    _session(root, "cpu", "two", files[:2])
    if gpu is not None:
        for name, hosts in (("one", ["host-0"]), ("two", ["host-0", "host-1"])):
            generate_session(gpu, root / "gpu", hosts, None, name)


def all_sessions(root: Path, capture: Path) -> None:
    """Makes what `--write` compares: original and enlarged, one host and several, of GPU, TPU and CPU."""
    small_sessions(root, capture, GPU)
    generate_session(GPU, root / "gpu", ["host-0"], 20, "one_of_20_MB")
    generate_session(GPU, root / "gpu", [f"host-{index}" for index in range(4)], 8, "four_of_8_MB")
    generate_session(TPU, root / "tpu", ["host-0"], None, "refused")
    readable = root.parent / f"readable{SUFFIX}"
    _renumbered(TPU, readable)
    generate_session(readable, root / "tpu", ["host-0"], None, "one")
    generate_session(readable, root / "tpu", ["host-0", "host-1"], None, "two")
    generate_session(readable, root / "tpu", ["host-0"], 8, "one_of_8_MB")
    generate_session(readable, root / "tpu", [f"host-{index}" for index in range(4)], 4, "four_of_4_MB")
    source = min(capture.glob(f"*{SUFFIX}"))
    generate_session(source, root / "cpu", ["host-0"], 8, "one_of_8_MB")
    generate_session(source, root / "cpu", [f"host-{index}" for index in range(3)], 2, "three_of_2_MB")


def _renumbered(source: Path, target: Path) -> None:
    """Gives a TPU's programs small ids in place of their fingerprints of 64 bits, wherever they stand: xprof-rs refuses
    those, and with it every TPU profile that is at hand."""
    space = XSpace.FromString(source.read_bytes())
    programs = [number for plane in space.planes if plane.name == "/host:metadata" for number in plane.event_metadata]
    small = {number % (1 << 64): index for index, number in enumerate(sorted(programs), 1)}

    def named(name: str) -> str:
        return re.sub(r"\((\d{6,})\)", lambda found: f"({small.get(int(found[1]), found[1])})", name)

    def renumber(stats: Iterable[Any]) -> None:
        for stat in stats:
            kind = stat.WhichOneof("value")
            if kind in ("int64_value", "uint64_value"):
                value = getattr(stat, kind)
                setattr(stat, kind, small.get(value % (1 << 64), value))
            elif kind == "str_value":
                stat.str_value = named(stat.str_value)

    for plane in space.planes:
        for number in list(plane.event_metadata):
            metadata = plane.event_metadata[number]
            metadata.name, metadata.display_name = named(metadata.name), named(metadata.display_name)
            renumber(metadata.stats)
            if plane.name == "/host:metadata":
                metadata.id = small[number % (1 << 64)]
                plane.event_metadata[metadata.id].CopyFrom(metadata)
                del plane.event_metadata[number]
        for metadata in plane.stat_metadata.values():
            metadata.name = named(metadata.name)
        renumber(plane.stats)
        for line in plane.lines:
            for event in line.events:
                renumber(event.stats)
    target.write_bytes(space.SerializeToString(deterministic=True))


async def _compare_all(
    sessions: Sequence[Session], stock: httpx.Client, links: Path, tools: Collection[str]
) -> list[Comparison]:
    binary = accelerated_binary()
    if binary is None:
        raise RuntimeError("xprof-rs is not installed: pip install 'xprof-hosting[accelerated]'")

    @contextlib.asynccontextmanager
    async def scratch() -> AsyncIterator[Path]:
        yield links

    engine = AcceleratedEngine(binary, scratch, "xprof-rs", trusts=lambda tool, parameters, case: True)
    try:
        found = []
        for session in sessions:
            for name in tools:
                if name in TOOLS:
                    found += [item async for item in _tool(engine, stock, session, TOOLS[name])]
        return found
    finally:
        await engine.close()


async def _tool(
    engine: AcceleratedEngine, stock: httpx.Client, session: Session, tool: Tool
) -> AsyncIterator[Comparison]:
    offered = listed_hosts(tool, session.hosts)[:HOSTS_PER_TOOL]
    if len(session.files) > 1 and tool.hosts == "each" and tool.family is not Family.TRACE:
        # What a link without a host asks for.
        offered.append(ALL_HOSTS)
    for host in offered:
        files = [path for path in session.files if host in (ALL_HOSTS, path.name.removesuffix(SUFFIX))]
        for given in VARIANTS.get(tool.name, [{}]):
            asked = Comparison(session.name, tool.name, host, canonical_parameters(tool, given), _case(files))
            answer = await engine.answer(tool.name, asked.parameters, _linked(files))
            if answer is None:
                yield replace(asked, refused=True)
                continue
            query = {"tag": tool.name, **given, "use_saved_result": "false"}
            theirs = await _get(stock, "data", {**query, "run": session.name, "host": host})
            blank = await _get(stock, "data", {**query, "run": BLANK, "host": "host"})
            yield replace(
                asked,
                telling=same_answer(tool.name, theirs.content, blank.content) is not None,
                difference=_difference(tool.name, answer.data, answer.content_type, theirs),
            )


async def _get(stock: httpx.Client, path: str, query: dict[str, str]) -> httpx.Response:
    return await asyncio.to_thread(stock.get, f"{API}{path}", params=query)


def _difference(tool: str, ours: bytes, content_type: str, theirs: httpx.Response) -> str | None:
    if theirs.status_code != 200:
        return f"an answer, where the stock server says {theirs.status_code} {theirs.text[:100]}"
    expected = theirs.headers["content-type"].split(";")[0].strip()
    if content_type != expected:
        return f"type {content_type}, not {expected}"
    return same_answer(tool, ours, theirs.content, in_order=tool not in SAMPLED)


def _case(files: Sequence[Path]) -> str:
    return case_of([scan_xspace(path).planes for path in files])


def _linked(files: Sequence[Path]) -> list[LinkedHost]:
    return [LinkedHost(path.name.removesuffix(SUFFIX), _identity(path), path) for path in files]


def _identity(path: Path) -> str:
    status = path.stat()
    return f"{status.st_ino:x}-{status.st_size:x}-{path.parent.name}-{path.name}".replace("/", "_")


def _name(root: Path, folder: Path) -> str:
    run, _, _, session = folder.relative_to(root).parts
    return f"{run}/{session}"


def _session(root: Path, run: str, name: str, files: Sequence[Path]) -> None:
    folder = root / run / "plugins" / "profile" / name
    folder.mkdir(parents=True)
    for file in files:
        shutil.copyfile(file, folder / file.name)


def _print(tools: dict[str, dict[str, Verdict]]) -> None:
    for tool, cases in tools.items():
        for case, verdict in cases.items():
            said = "same" if verdict.trusted else verdict.difference or "nothing to compare"
            counts = f"{verdict.compared:3} compared {verdict.telling:3} telling {verdict.refused:3} refused"
            print(f"{tool:24} {case:18} {counts}  {said[:140]}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parity", description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write the outcome to {TABLE.name}")
    options = parser.parse_args(arguments)
    shared = GPU.is_file() and TPU.is_file()
    if options.write and not shared:
        print(f"{PROFILES} is missing, and what a CPU's capture shows is too little to write.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="xprof-hosting-parity-") as name:
        folder = Path(name)
        root = folder / "root"
        capture = capture_demo_session(folder / "capture")
        if shared:
            all_sessions(root, capture)
        else:
            small_sessions(root, capture, None)
        comparisons = compare(root, folder)
    tools = verdicts(comparisons)
    _print(tools)
    if options.write:
        sessions = sorted({item.session for item in comparisons})
        table = TrustTable(str(date.today()), version("xprof"), accelerated_version() or "", sessions, tools)
        TABLE.write_text(json.dumps(_plain(table), indent=2) + "\n")
        print(f"Wrote {TABLE}.")
    return 0


def _plain(table: TrustTable) -> dict[str, Any]:
    return asdict(table)


if __name__ == "__main__":
    sys.exit(main())
