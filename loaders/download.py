"""Bringing one file from a store to the local disk, whole and verified."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Final, TypeVar

from loaders.errors import CorruptTransfer, DiskFull, ProfileError, StoreUnreachable
from loaders.stored_file import Checksum, Hasher, StoredFile
from loaders.stores import Store
from loaders.unbroken import in_thread

T = TypeVar("T")

_log = logging.getLogger(__name__)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class RetryPace:
    """How a broken transfer is taken up again."""

    attempts: int = 5
    """Attempts in a row that bring less than `progress` bytes; then the store counts as unreachable."""
    progress: int = 256 << 10
    most_attempts: int = 50
    """Attempts altogether, whatever they bring."""
    first_delay: float = 0.2
    """Seconds before the second attempt at most; doubled with every further one, with jitter."""
    longest_delay: float = 5.0

    def delay(self, failed: int) -> float:
        """Seconds to wait after so many failed attempts in a row."""
        longest = min(self.first_delay * 2 ** (failed - 1), self.longest_delay)
        return random.uniform(longest / 2, longest)


@dataclass(frozen=True, slots=True)
class DownloadReport:
    """A transfer that has ended."""

    uri: str
    bytes: int
    """As many as arrived, those of broken attempts that were resumed included."""
    seconds: float
    resumed: int
    """How often a broken or stalled connection was taken up again."""
    corrupt: int
    """How often all arrived and the checksum was wrong."""
    outcome: str
    """`ok`, or the code of the error it ended with, or `cancelled`."""


@dataclass(slots=True)
class Download:
    """One transfer, from the first request to the verified file."""

    file: StoredFile
    store: Store
    pace: RetryPace
    trust_guesses: bool = True
    """Whether a checksum that the store is not certain of is used."""
    refuted: bool = False
    """Set when such a checksum turned out to be none."""
    received: int = 0
    resumed: int = 0
    corrupt: int = 0
    started: float = field(default_factory=time.monotonic)

    async def run(self, part: Path) -> None:
        """Write the file's bytes to `part`, which must exist, and flush it to the disk.

        However it ends, nothing writes to `part` afterwards; unless it ends well, its content is of no use.

        Raises:
            NotFound, AccessDenied, StoreUnreachable, ObjectChanged: as for `Store.read`.
            CorruptTransfer: the checksum was wrong, twice.
            DiskFull: the disk has no room for the rest.
        """
        target = await _on_disk(self.file.uri, partial(FileIO, part, "r+"))
        try:
            checksum = await self.store.checksum(self.file)
            if checksum is not None and not checksum.certain and not self.trust_guesses:
                checksum = None
            digest = await self._transfer(target, checksum)
            if checksum is not None and digest != checksum.digest:
                await self._once_more(target, checksum, digest)
            await _on_disk(self.file.uri, lambda: os.fdatasync(target.fileno()))
        finally:
            target.close()

    def report(self, outcome: str) -> DownloadReport:
        """What has come of it."""
        took = time.monotonic() - self.started
        return DownloadReport(self.file.uri, self.received, took, self.resumed, self.corrupt, outcome)

    async def _once_more(self, target: FileIO, checksum: Checksum, digest: bytes | None) -> None:
        self.corrupt += 1
        _log.warning("%s arrived with a wrong checksum and is fetched once more", self.file.uri)
        again = await self._transfer(target, checksum)
        if again == checksum.digest:
            return
        self.corrupt += 1
        if again == digest and not checksum.certain:
            # Accidents do not repeat to the bit: what the store gave was no checksum of the content.
            self.refuted = True
            _log.info("%s arrived twice the same: its ETag is taken for no MD5", self.file.uri)
            return
        raise CorruptTransfer(
            f"{self.file.uri} arrived damaged twice: its {checksum.algorithm} does not match what the store says. "
            "Try again; if it happens again, check the network in between, proxies first."
        )

    async def _transfer(self, target: FileIO, checksum: Checksum | None) -> bytes | None:
        """All bytes of the file from the first on, resuming as often as it takes; their digest."""
        hasher = checksum.hasher() if checksum else None
        done = failed = attempts = 0
        while True:
            before = done
            attempts += 1
            try:
                async with aclosing(self.store.read(self.file, done)) as chunks:
                    async for chunk in chunks:
                        if done + len(chunk) > self.file.size:
                            raise StoreUnreachable(f"{self.file.uri} has more bytes than the store says.")
                        await _on_disk(self.file.uri, partial(_write, target, chunk, done, hasher))
                        done += len(chunk)
                        self.received += len(chunk)
                if done == self.file.size:
                    return hasher.digest() if hasher else None
                raise StoreUnreachable(f"{self.file.uri} ended after {done:,} of {self.file.size:,} bytes.")
            except StoreUnreachable as error:
                failed = 1 if done - before >= self.pace.progress else failed + 1
                if failed >= self.pace.attempts or attempts >= self.pace.most_attempts:
                    raise StoreUnreachable(
                        f"{error.message} Gave up after {attempts} attempts with {done:,} of {self.file.size:,} bytes."
                    ) from error
                self.resumed += 1
                delay = self.pace.delay(failed)
                _log.info("%s is resumed at byte %d in %.1f s: %s", self.file.uri, done, delay, error.message)
                await asyncio.sleep(delay)


def allocate(part: Path, size: int) -> None:
    """Make `part` as a file of `size` bytes with its place on the disk reserved.

    Raises:
        OSError: there is no place, or the folder cannot be written to.
    """
    with part.open("wb") as file:
        if size:
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                if error.errno in _FULL:
                    raise
                # File systems that cannot reserve: the length alone still counts for the cache.
                file.truncate(size)


def disk_error(uri: str, error: OSError) -> ProfileError:
    """The error to raise when the file cache cannot be written to."""
    if error.errno in _FULL:
        return DiskFull(f"The disk of the file cache is full, so {uri} cannot be fetched. Free some space there.")
    return DiskFull(f"The file cache cannot be written to for {uri}: {error.strerror or error}. Check its disk.")


def _write(target: FileIO, chunk: bytes, offset: int, hasher: Hasher | None) -> None:
    data = memoryview(chunk)
    target.seek(offset)
    while data:
        data = data[target.write(data) :]
    if hasher is not None:
        hasher.update(chunk)


async def _on_disk(uri: str, work: Callable[[], T]) -> T:
    try:
        return await in_thread(work)
    except OSError as error:
        raise disk_error(uri, error) from error
