"""The XPlane files of a job's hosts on this machine: brought here, checked, and linked into an engine's folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from loaders.engines import tasks
from loaders.errors import ObjectChanged, ProfileTooLarge
from loaders.file_cache import FileCache
from loaders.jobs import ToolJob
from loaders.sessions import HostFile
from loaders.stored_file import StoredFile
from loaders.stores import Store

MAX_FILE_BYTES: Final = (1 << 31) - 1
"""Protobuf's limit for one message."""


class HostFiles:
    """Opens hosts' files through the file cache."""

    def __init__(self, cache: FileCache, store_of: Callable[[str], Store]) -> None:
        """`store_of` gives the store of a log root's name."""
        self._cache = cache
        self._store_of = store_of

    async def open(self, stack: AsyncExitStack, job: ToolJob, hosts: Sequence[HostFile]) -> list[Path]:
        """The hosts' files on this machine, several fetched at once; they stay until the stack is closed.

        Raises:
            ProfileTooLarge: one is beyond what protobuf can parse.
            ProfileError: one can't be had; as `FileCache.open` has it.
        """
        for item in hosts:
            check_size(item)
        store = self._store_of(job.root)
        leases = [self._cache.open(item.file, store) for item in hosts]
        results = await asyncio.gather(*(lease.__aenter__() for lease in leases), return_exceptions=True)
        paths: list[Path] = []
        failed: BaseException | None = None
        for lease, result in zip(leases, results, strict=True):
            if isinstance(result, BaseException):
                failed = failed or result
                continue
            stack.push_async_exit(lease)
            paths.append(result)
        if failed is not None:
            raise failed
        return paths

    async def link(self, stack: AsyncExitStack, job: ToolJob, hosts: Sequence[HostFile], folder: Path) -> None:
        """Links the hosts' files into a session folder; raises as `open` does."""
        for item, path in zip(hosts, await self.open(stack, job, hosts), strict=True):
            (folder / f"{item.host}{tasks.XPLANE_SUFFIX}").symlink_to(path)


def check_size(item: HostFile) -> None:
    """Raises ProfileTooLarge if protobuf cannot parse the host's file."""
    if item.file.size > MAX_FILE_BYTES:
        raise ProfileTooLarge(
            f"The file of host '{item.host}' has {item.file.size / 2**30:.2f} GiB; XProf's format ends at 2 GiB "
            f"(protobuf's limit). Capture for a shorter time or with a lower tracer level."
        )


def check_unchanged(hosts: Sequence[HostFile]) -> None:
    """Raises ObjectChanged if a local file was written to while the engine read it; others were read from a copy."""
    for item in hosts:
        path = item.file.local_path
        if path is not None and (not path.exists() or StoredFile.from_stat(path, path.stat()) != item.file):
            raise ObjectChanged(f"The file of host '{item.host}' changed while it was read. Try again in a moment.")
