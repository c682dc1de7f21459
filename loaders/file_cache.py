"""Local copies of the files in stores, and folders derived from them, shared by all processes of one machine."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from loaders.cache_space import LOCK, PART, CacheSpace, CacheUsage, folder_bytes
from loaders.download import Download, DownloadReport, RetryPace, allocate, disk_error
from loaders.entry_lock import EntryLock, lock, try_lock
from loaders.errors import DiskFull, ProfileError
from loaders.local_store import open_unchanged
from loaders.single_flight import SingleFlight
from loaders.stored_file import StoredFile
from loaders.stores import Store
from loaders.unbroken import in_thread

__all__ = ["CacheUsage", "DownloadReport", "FileCache", "RetryPace"]

_log = logging.getLogger(__name__)
_ROUNDS: Final = 5
_DOWNLOADS: Final = 16
_ROOM_POLL: Final = 0.1


class FileCache:
    """Bounded by bytes; evicts what is least recently used and not in use; survives restarts.

    Every process on the machine may have one on the same folder: locks on files see to it that each file is downloaded
    once, and that nothing is removed under anybody's hands. Use one instance from one event loop.
    """

    def __init__(
        self,
        root: Path,
        max_bytes: int,
        *,
        min_free_bytes: int = 256 << 20,
        on_download: Callable[[DownloadReport], None] | None = None,
        room_timeout: float = 10.0,
        pace: RetryPace | None = None,
    ) -> None:
        """Makes the folder, and removes what dead processes have left behind in it.

        Args:
            root: the folder, on a local disk (locks must work between processes).
            max_bytes: what copies, published folders and downloads under way may hold together.
            min_free_bytes: what must stay free on the disk.
            on_download: called after every transfer, failed ones too.
            room_timeout: seconds to wait for entries in use when there is no room.
            pace: how broken transfers are taken up again.

        Raises:
            OSError: the folder cannot be made.
        """
        self._space = CacheSpace(root, max_bytes, min_free_bytes)
        self._space.sweep()
        self._on_download = on_download
        self._room_timeout = room_timeout
        self._pace = pace or RetryPace()
        self._downloads: SingleFlight[None] = SingleFlight()
        # Each holds some MB of what is on its way from the store to the disk.
        self._turns = asyncio.Semaphore(_DOWNLOADS)
        # Stores (by log root) whose guesses at checksums were wrong.
        self._guess_wrong: set[str] = set()

    @asynccontextmanager
    async def open(self, file: StoredFile, store: Store) -> AsyncIterator[Path]:
        """A whole and verified local copy of the file, downloaded unless it is here; it stays while the block runs.

        Local files are not copied: the path is the file's own, which is what was listed when the block begins.
        A caller that is cancelled leaves the download running, for the others and for the next time.

        Raises:
            NotFound, AccessDenied, StoreUnreachable, ObjectChanged: as for `Store.read`.
            CorruptTransfer: its checksum was wrong, twice.
            DiskFull: there is no room for it on the disk, or beside what is in use in the cache.
        """
        if file.local_path is not None:
            await asyncio.to_thread(lambda: os.close(open_unchanged(file)))
            yield file.local_path
            return
        path = self._space.files / file.identity
        for _ in range(_ROUNDS):
            lease = await _lease(path, partial(_is_whole, path, file.size))
            if lease is not None:
                break
            await self._downloads.do(file.identity, partial(self._fetch, file, store, path))
        else:
            raise DiskFull(
                f"{file.uri} was evicted before it could be used, again and again. Give the file cache more."
            )
        try:
            yield path
        finally:
            lease.release()

    @asynccontextmanager
    async def open_entry(self, key: str) -> AsyncIterator[Path | None]:
        """The folder published under `key`, which stays while the block runs; None when there is none."""
        path = self._entry(key)
        lease = await _lease(path, path.is_dir)
        if lease is None:
            yield None
            return
        try:
            yield path
        finally:
            lease.release()

    async def publish_entry(self, key: str, folder: Path) -> None:
        """Move a folder of ours, as from `scratch`, in under `key`. Where there is one already, `folder` is removed.

        Raises:
            DiskFull: there is no room for it beside what is in use; `folder` stays where it is.
        """
        path = self._entry(key)
        held = await lock(path.with_name(path.name + LOCK), exclusive=True)
        try:
            if path.exists():
                await in_thread(partial(self._space.remove_folder, folder))
                return
            try:
                size = await in_thread(partial(_settle, folder))
                await self._take_room(
                    "what was derived from a profile", size, partial(_move_in, held, folder, path, size)
                )
            except OSError as error:
                raise disk_error("what was derived from a profile", error) from error
        finally:
            _let_go(held, path)

    def contains(self, file: StoredFile) -> bool:
        """Whether opening the file needs no download. A quick look, without a promise."""
        return file.local_path is not None or _is_whole(self._space.files / file.identity, file.size)

    @asynccontextmanager
    async def scratch(self) -> AsyncIterator[Path]:
        """A fresh, empty folder on the cache's disk, removed after the block, or by the next process should we die.

        Raises:
            DiskFull: it cannot be made.
        """
        path = self._space.scratch / uuid.uuid4().hex
        held = await lock(path.with_name(path.name + LOCK), exclusive=True)
        try:
            try:
                path.mkdir()
            except OSError as error:
                raise disk_error("a scratch folder", error) from error
            yield path
        finally:
            try:
                await in_thread(partial(shutil.rmtree, path, ignore_errors=True))
            finally:
                held.retire()

    def usage(self) -> CacheUsage:
        """What the cache holds now, all processes' entries included. Reads folders: call it in a thread."""
        return self._space.usage()

    def _entry(self, key: str) -> Path:
        return self._space.entries / hashlib.sha256(key.encode()).hexdigest()

    async def _fetch(self, file: StoredFile, store: Store, path: Path) -> None:
        held = await lock(path.with_name(path.name + LOCK), exclusive=True)
        part = path.with_name(path.name + PART)
        try:
            if _is_whole(path, file.size):
                # Another process was faster.
                return
            download = Download(file, store, self._pace, trust_guesses=store.uri not in self._guess_wrong)
            outcome = "cancelled"
            try:
                await self._take_room(file.uri, file.size, partial(allocate, part, file.size))
                async with self._turns:
                    await download.run(part)
                part.rename(path)
                outcome = "ok"
            except ProfileError as failure:
                outcome = failure.code
                raise
            except OSError as failure:
                outcome = DiskFull.code
                raise disk_error(file.uri, failure) from failure
            finally:
                part.unlink(missing_ok=True)
                if download.refuted:
                    self._guess_wrong.add(store.uri)
                if self._on_download is not None:
                    self._on_download(download.report(outcome))
            held.write_note(file.uri)
        finally:
            _let_go(held, path)

    async def _take_room(self, what: str, size: int, take: Callable[[], None]) -> None:
        if size > self._space.max_bytes:
            raise DiskFull(
                f"{what} has {size:,} bytes, more than the whole file cache at {self._space.root} may hold "
                f"({self._space.max_bytes:,}). Give the cache more."
            )
        until = time.monotonic() + self._room_timeout
        while (reason := await in_thread(partial(self._space.make_room, size, take))) is not None:
            if time.monotonic() >= until:
                raise DiskFull(f"There is no room for {what} ({size:,} bytes): {reason}", retry_after=5)
            await asyncio.sleep(_ROOM_POLL)


async def _lease(path: Path, is_there: Callable[[], bool]) -> EntryLock | None:
    """A shared lock on an entry that is there; None for one that is not."""
    if not is_there():
        return None
    held = await lock(path.with_name(path.name + LOCK), exclusive=False)
    if is_there():
        held.touch()
        return held
    held.release()
    # Waiting for the lock of an entry that was evicted meanwhile has made a lock file for nothing.
    stray = try_lock(held.path, exclusive=True)
    if stray is not None:
        _let_go(stray, path)
    return None


def _is_whole(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def _settle(folder: Path) -> int:
    """Flush a folder's files to the disk, so that a power cut can't leave half of it under a key; their bytes."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
    return folder_bytes(folder)


def _move_in(held: EntryLock, folder: Path, path: Path, size: int) -> None:
    held.write_note(str(size))
    folder.rename(path)


def _let_go(held: EntryLock, path: Path) -> None:
    """Let go of an exclusive lock; its file stays only with what it belongs to."""
    if path.exists():
        held.release()
    else:
        held.retire()
