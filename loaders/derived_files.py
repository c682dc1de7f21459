"""What engine calls leave besides their answer, kept in the file cache so that the next call need not parse again.

Op stats, converted traces and HLO protos, under keys made of the engine's version, the host and its file's identity.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from loaders.engines import tasks
from loaders.errors import ObjectChanged
from loaders.file_cache import FileCache
from loaders.sessions import HostFile
from loaders.tools import Family

_INSPECTION: Final = "inspection.json"
_KEEPS_ALL_STEPS: Final = frozenset({"kernel_stats", "pod_viewer"})


def map_key(family: Family, item: HostFile) -> str:
    """The key of what one host's map leaves."""
    return _key("map", family, item)


def blocks_key(item: HostFile) -> str:
    """The key of a host's trace in small blocks."""
    return _key("blocks", Family.TRACE, item)


@dataclass(frozen=True, slots=True)
class OpStatsFacts:
    """What decides whether an overview needs a host's XPlane file beside its op stats."""

    is_training: bool
    may_have_requests: bool
    """Whether the file may hold inference requests, whose latency is in no op stats."""


class DerivedFiles:
    """Links derived files into engines' folders and takes them out again. Needs nothing but the cache."""

    def __init__(self, cache: FileCache) -> None:
        self._cache = cache

    async def has_map(self, family: Family, item: HostFile) -> bool:
        """Whether this machine has what the host's map leaves."""
        async with self._cache.open_entry(map_key(family, item)) as entry:
            return entry is not None

    async def link_map(
        self, stack: AsyncExitStack, family: Family, item: HostFile, folder: Path
    ) -> OpStatsFacts | None:
        """Links what one host's map has left into a reduce's folder; returns what is known of its op stats, if any.

        Raises:
            ObjectChanged: it was evicted since it was made.
        """
        entry = await self._entry(stack, map_key(family, item), item)
        for source in entry.iterdir():
            # Hosts may run the same programs: one file of a name is enough.
            if source.name not in (_INSPECTION, tasks.OP_STATS_FACTS) and not (folder / source.name).exists():
                os.link(source, folder / source.name)
        return op_stats_facts(entry) if family is Family.OP_STATS else None

    async def link_blocks(self, stack: AsyncExitStack, item: HostFile, folder: Path) -> bool:
        """Links a host's trace in small blocks beside its tables, for a window of it; False if there is none."""
        entry = await stack.enter_async_context(self._cache.open_entry(blocks_key(item)))
        for source in entry.iterdir() if entry is not None else ():
            os.link(source, folder / source.name)
        return entry is not None

    async def keep_blocks(self, item: HostFile, folder: Path) -> None:
        """Keeps what `loaders.engines.trace_blocks` has made in the folder."""
        await self._keep(folder, [f"{item.host}{suffix}" for suffix in tasks.WINDOW_SUFFIXES], blocks_key(item))

    async def inspection(self, item: HostFile) -> tasks.Inspection:
        """The tools and modules that the host's HLO map has found; raises as `link_map` does."""
        async with AsyncExitStack() as stack:
            entry = await self._entry(stack, map_key(Family.HLO, item), item)
            found = json.loads((entry / _INSPECTION).read_bytes())
            return tasks.Inspection(tuple(found["tools"]), tuple(found["modules"]))

    async def link_own(
        self, stack: AsyncExitStack, family: Family, tool: str, hosts: Sequence[HostFile], folder: Path
    ) -> bool:
        """Links what an earlier call on this one host has left for the tool; False if there is none."""
        key = _own_key(family, tool, hosts)
        entry = await stack.enter_async_context(self._cache.open_entry(key)) if key else None
        if entry is None:
            return False
        for source in entry.iterdir():
            os.link(source, folder / source.name)
        return True

    async def keep_own(self, family: Family, tool: str, hosts: Sequence[HostFile], folder: Path) -> None:
        """Keeps what a call on one host has left in its folder for the family's other tools."""
        key = _own_key(family, tool, hosts)
        if key is not None:
            names = [f"{hosts[0].host}{suffix}" for suffix in tasks.TRACE_SUFFIXES]
            if family is Family.OP_STATS:
                names = [tasks.COMBINED_OP_STATS, tasks.OP_STATS_FACTS]
            await self._keep(folder, names, key)

    async def keep_map(
        self, family: Family, item: HostFile, folder: Path, inspection: tasks.Inspection | None = None
    ) -> None:
        """Keeps what a host's map has left in its folder; an HLO map also what it has found."""
        if inspection is not None:
            (folder / _INSPECTION).write_text(json.dumps(asdict(inspection)))
            names = [_INSPECTION, *_hlo_files(folder)]
        elif family is Family.TRACE:
            names = [f"{item.host}{suffix}" for suffix in tasks.TRACE_SUFFIXES]
        else:
            names = [map_output(family, item), tasks.OP_STATS_FACTS]
        await self._keep(folder, names, map_key(family, item))

    async def _entry(self, stack: AsyncExitStack, key: str, item: HostFile) -> Path:
        entry = await stack.enter_async_context(self._cache.open_entry(key))
        if entry is None:
            raise ObjectChanged(
                f"What was made of host '{item.host}' was evicted from the file cache before it was used. Try again, "
                f"or raise --cache-gib."
            )
        return entry

    async def _keep(self, folder: Path, names: Sequence[str], key: str) -> None:
        if not all((folder / name).exists() for name in names):
            return
        kept = folder.parent / "kept"
        kept.mkdir()
        for name in names:
            (folder / name).rename(kept / name)
        await self._cache.publish_entry(key, kept)


def map_output(family: Family, item: HostFile) -> str:
    """The file that XProf's worker names as the output of a host's map."""
    return f"{item.host}{'.SSTABLE' if family is Family.TRACE else tasks.OP_STATS_SUFFIX}"


def op_stats_facts(folder: Path) -> OpStatsFacts:
    """What was noted of the op stats in the folder; older notes say nothing of requests."""
    noted = json.loads((folder / tasks.OP_STATS_FACTS).read_bytes())
    return OpStatsFacts(bool(noted["is_training"]), bool(noted.get("may_have_requests", True)))


def _hlo_files(folder: Path) -> list[str]:
    return [path.name for path in folder.glob(f"*{tasks.HLO_SUFFIX}")]


def _own_key(family: Family, tool: str, hosts: Sequence[HostFile]) -> str | None:
    """The key of what a tool leaves of a session with one host; None for tools that leave nothing of use.

    Such op stats are not those of the host's map: xprof's newer tools have dropped the first and last step from them,
    its older ones have not.
    """
    if len(hosts) != 1 or family not in (Family.OP_STATS, Family.TRACE):
        return None
    if family is Family.TRACE:
        return map_key(family, hosts[0])
    return _key("whole" if tool in _KEEPS_ALL_STEPS else "combined", family, hosts[0])


def _key(kind: str, family: Family, item: HostFile) -> str:
    parts = [tasks.ENGINE, kind, family.value, item.host, item.file.identity]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
