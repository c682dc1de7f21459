"""Locks on cache entries between threads, tasks and processes of one machine: `flock` on a file beside the entry.

A lock that is held shared says "in use, do not remove"; exclusive, "being written or removed". The kernel lets go of
the locks of a process that dies. The lock file's modification time tells when its entry was last used, and its text is
a note about the entry. A lock file goes with its entry, so that they do not pile up; whoever waits for a lock whose
file was removed meanwhile notices by the inode and takes the new one.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from pathlib import Path
from typing import Final

_FIRST_DELAY: Final = 0.005
_LONGEST_DELAY: Final = 0.2
_TOUCH_EVERY: Final = 60.0
_NOTE_BYTES: Final = 64


class EntryLock:
    """A lock that is held until `release` or `retire`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    def touch(self) -> None:
        """The entry is used now. Written at most once per minute, since opening an entry must not cost a disk write."""
        assert self._descriptor is not None
        if abs(time.time() - os.fstat(self._descriptor).st_mtime) > _TOUCH_EVERY:
            os.utime(self._descriptor)

    def write_note(self, text: str) -> None:
        """Replace the note about the entry (exclusive locks only); counts as use."""
        assert self._descriptor is not None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(), 0)

    def retire(self) -> None:
        """Remove the lock file, whose entry is gone, and let go (exclusive locks only)."""
        self.path.unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Let go; harmless when done already."""
        if self._descriptor is not None:
            # Said aloud, since a forked child that has inherited the descriptor would keep the lock otherwise.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None


def try_lock(path: Path, *, exclusive: bool) -> EntryLock | None:
    """The lock if it is free now, else None. Makes the lock file. A handful of quick system calls."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            continue
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if _is_current(path, descriptor):
            return EntryLock(path, descriptor)
        os.close(descriptor)


async def lock(path: Path, *, exclusive: bool) -> EntryLock:
    """The lock as soon as it is free. Polls, since a thread that waits in the kernel cannot be cancelled."""
    delay = _FIRST_DELAY
    while (held := try_lock(path, exclusive=exclusive)) is None:
        await asyncio.sleep(delay)
        delay = min(delay * 1.5, _LONGEST_DELAY)
    return held


def last_used(path: Path) -> float:
    """When the entry of this lock file was last used, seconds since the epoch; 0 without a lock file."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def read_note(path: Path) -> str:
    """The note in a lock file; empty without one."""
    try:
        with path.open("rb") as file:
            return file.read(_NOTE_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _is_current(path: Path, descriptor: int) -> bool:
    try:
        now = path.stat()
    except FileNotFoundError:
        return False
    held = os.fstat(descriptor)
    return (now.st_dev, now.st_ino) == (held.st_dev, held.st_ino)
