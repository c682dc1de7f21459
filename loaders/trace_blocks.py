"""Converted traces in small blocks: made in the background, linked into the folders of those who ask for a window."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from cachetools import LRUCache

from loaders.derived_files import DerivedFiles, blocks_key
from loaders.engines import tasks
from loaders.engines.pool import EnginePool, session_folder
from loaders.errors import ProfileError
from loaders.file_cache import FileCache
from loaders.jobs import ToolJob
from loaders.sessions import HostFile
from loaders.single_flight import SingleFlight
from loaders.tickets import Ticket, current_ticket
from loaders.tools import Family

WORTH_BYTES: Final = 2 << 20
"""Smaller tables are read in a few milliseconds as they are."""

_log = logging.getLogger(__name__)


class TraceBlocks:
    """Sees to it that windows of large traces are quick. They only ever make answers quicker: without them, and where
    they cannot be made, windows are answered from the whole table."""

    def __init__(self, cache: FileCache, derived: DerivedFiles, pool: EnginePool) -> None:
        self._cache = cache
        self._derived = derived
        self._pool = pool
        self._making: SingleFlight[None] = SingleFlight()
        self._background: set[asyncio.Task[None]] = set()
        self._not_to_be: LRUCache[str, bool] = LRUCache(maxsize=10_000)

    async def link(self, stack: AsyncExitStack, job: ToolJob, hosts: Sequence[HostFile], folder: Path) -> None:
        """Links the hosts' blocks into a folder if the job asks for a window; has those that are missing made."""
        if "start_time_ms" in dict(job.parameters):
            for item in hosts:
                if not await self._derived.link_blocks(stack, item, folder):
                    self.make_later(job, item)

    def make_later(self, job: ToolJob, item: HostFile) -> None:
        """Has a host's blocks made in the background, from tables that are kept, unless they are here."""
        key = blocks_key(item)
        if key in self._making or key in self._not_to_be:
            return
        task = asyncio.ensure_future(self._attempt(job, item, key))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def settle(self) -> None:
        """Waits for what is being made."""
        while self._background:
            await asyncio.gather(*self._background, return_exceptions=True)

    async def _attempt(self, job: ToolJob, item: HostFile, key: str) -> None:
        # Nobody waits for this; whoever made it necessary is gone before it has its turn.
        current_ticket.set(Ticket(wanted=True))
        try:
            await self._making.do(key, lambda: self._make(job, item, key))
        except (ProfileError, ValueError, OSError) as error:
            self._not_to_be[key] = True
            _log.warning("a trace could not be put in small blocks", extra={"work": job.what, "reason": str(error)})

    async def _make(self, job: ToolJob, item: HostFile, key: str) -> None:
        async with AsyncExitStack() as stack:
            if await stack.enter_async_context(self._cache.open_entry(key)) is not None:
                return
            scratch = await stack.enter_async_context(self._cache.scratch())
            folder = session_folder(scratch, "blocks")
            await self._derived.link_map(stack, Family.TRACE, item, folder)
            if (folder / f"{item.host}{tasks.TRACE_SUFFIXES[0]}").stat().st_size < WORTH_BYTES:
                self._not_to_be[key] = True
                return
            what = f"blocks of session '{job.session}', host '{item.host}'"
            await self._pool.run(tasks.make_blocks, folder, item.host, what=what)
            await self._derived.keep_blocks(item, folder)
