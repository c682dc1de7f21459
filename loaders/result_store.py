"""Finished tool data by result key, in the state folder or in a bucket, so that restarts and other replicas find it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Final

from cachetools import LRUCache

from loaders.errors import ProfileError
from loaders.records import DamagedRecord, Record
from loaders.result_shelf import open_shelf
from loaders.stores import StoreOptions

_log = logging.getLogger(__name__)
_SWEEP_TO: Final = 0.9
_MIN_SWEEP_SECONDS: Final = 60.0


class ResultStore:
    """Records by key. Only whole answers are put here; failures never are.

    A local store is swept to its size, oldest use first. A bucket is left to its own lifecycle rule, since other
    instances may share it.
    """

    def __init__(
        self, uri: str, options: StoreOptions, *, max_bytes: int = 10 << 30, memory_bytes: int = 128 << 20
    ) -> None:
        """
        Args:
            uri: a folder or `gs://…`, `s3://…`.
            max_bytes: what a local store may hold.
            memory_bytes: what this process keeps in memory of what it read last.
        """
        self._max_bytes = max_bytes
        self._shelf = open_shelf(uri, options)
        self._recent: LRUCache[str, Record] = LRUCache(maxsize=memory_bytes, getsizeof=len)
        self._swept = 0.0

    async def get(self, key: str) -> Record | None:
        """The record under `key`, or None. A damaged one is removed and counts as missing; so does a store's failure,
        which is logged: the answer can always be made again."""
        record = self._recent.get(key)
        if record is not None:
            return record
        path = _path(key)
        try:
            data = await self._shelf.read(path)
            if data is None:
                return None
            record = Record(data)
            await asyncio.to_thread(record.verify)
        except DamagedRecord as error:
            _log.warning("a damaged result was dropped", extra={"key": key, "reason": str(error)})
            await self.drop(key)
            return None
        except ProfileError as error:
            _log.warning("a result could not be read", extra={"reason": str(error)})
            return None
        if self._shelf.folder is not None:
            await asyncio.to_thread(_touch, self._shelf.folder / path)
        self.remember(key, record)
        return record

    async def put(self, key: str, data: bytes | memoryview) -> Record:
        """Keeps a record under `key`; it appears whole or not at all. A store's failure is logged: the answer is at
        hand all the same, and is made again when it is next asked for.

        Raises:
            DamagedRecord: `data` is no record.
        """
        record = Record(data)
        self.remember(key, record)
        try:
            await self._shelf.write(_path(key), data)
        except ProfileError as error:
            _log.warning("a result could not be kept", extra={"reason": str(error)})
        folder = self._shelf.folder
        if folder is not None and time.monotonic() - self._swept > _MIN_SWEEP_SECONDS:
            self._swept = time.monotonic()
            await asyncio.to_thread(_sweep, folder, self._max_bytes)
        return record

    async def drop(self, key: str) -> None:
        """Forgets a record."""
        self._recent.pop(key, None)
        try:
            await self._shelf.delete(_path(key))
        except ProfileError as error:
            _log.warning("a result could not be deleted", extra={"reason": str(error)})

    def remember(self, key: str, record: Record) -> None:
        """Keeps in memory a record that another replica made and stored."""
        if len(record) < self._recent.maxsize / 4:
            self._recent[key] = record


def _path(key: str) -> str:
    return f"{key[:2]}/{key}"


def _touch(path: Path) -> None:
    try:
        os.utime(path)
    except OSError:
        _log.debug("a result vanished while it was read", extra={"path": str(path)})


def _sweep(folder: Path, max_bytes: int) -> None:
    """Deletes what was used least recently until the folder is well under its size."""
    found: list[tuple[float, int, Path]] = []
    for path in folder.glob("??/*"):
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue
        found.append((stat.st_mtime, stat.st_size, path))
    total = sum(size for _, size, _ in found)
    if total <= max_bytes:
        return
    for _, size, path in sorted(found, key=lambda item: item[0]):
        path.unlink(missing_ok=True)
        total -= size
        if total <= max_bytes * _SWEEP_TO:
            break
