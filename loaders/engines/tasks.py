"""What an engine process is asked, and the calls themselves, importable without loading the engine's native code.

The functions here are what `EnginePool` sends to its children; only there do they import the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Final

from loaders.records import RecordHeader

ENGINE: Final = f"xprof {version('xprof')}"
"""The reference engine's name and version, a part of every result's key."""

COMBINED_OP_STATS: Final = "ALL_HOSTS.op_stats_v2.pb"
"""What xprof names the op stats of a whole folder, one host or many."""
OP_STATS_FACTS: Final = "op_stats_facts.json"
"""Our note beside a host's: whether its program was training or served requests, on which an overview depends."""
XPLANE_SUFFIX: Final = ".xplane.pb"
OP_STATS_SUFFIX: Final = ".op_stats_v2.pb"
HLO_SUFFIX: Final = ".hlo_proto.pb"
TRACE_SUFFIXES: Final = (".SSTABLE", ".metadata.SSTABLE", ".trie.SSTABLE")
WINDOW_SUFFIXES: Final = (".blocks", ".blocks.npy")
"""The first of these tables again, in small blocks with an index: see `loaders.engines.trace_blocks`."""


@dataclass(frozen=True, slots=True)
class ToolTask:
    """One call of the engine."""

    tool: str
    parameters: tuple[tuple[str, str], ...]
    folder: Path
    """The session folder, ready."""
    hosts: tuple[str, ...]
    session: str
    """For messages only."""
    record: Path | None = None
    """Where the answer goes as a record; None drops it, for a map."""
    saved: bool = False
    """Whether the derived files in the folder are to be used."""
    map_outputs: Mapping[str, Path] = field(default_factory=dict)
    """The file that each host's map has left, for a reduce."""
    scan: tuple[str, ...] = ()
    """Hosts whose files have not been scanned before."""
    left_out: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a folder's XSpaces offer."""

    tools: tuple[str, ...]
    modules: tuple[str, ...]


def inspect(task: ToolTask) -> Inspection:
    """See `loaders.engines.xprof.inspect`."""
    from loaders.engines import xprof

    return xprof.inspect(task)


def tool_data(task: ToolTask) -> RecordHeader:
    """See `loaders.engines.xprof.tool_data`."""
    from loaders.engines import xprof

    return xprof.tool_data(task)


def map_op_stats(task: ToolTask) -> None:
    """See `loaders.engines.xprof.map_op_stats`."""
    from loaders.engines import xprof

    xprof.map_op_stats(task)


def make_blocks(folder: Path, host: str) -> None:
    """See `loaders.engines.trace_blocks.make_blocks`."""
    from loaders.engines import trace_blocks

    trace_blocks.make_blocks(folder, host)


def scan(path: Path) -> None:
    """Raises InvalidProfile or ProfileTooLarge unless the file is a whole XSpace."""
    from loaders.xspace_scan import scan_xspace

    scan_xspace(path)


def self_test(folder: Path) -> int:
    """See `loaders.engines.xprof.self_test`."""
    from loaders.engines import xprof

    return xprof.self_test(folder)
