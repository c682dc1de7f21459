"""The file cache's folder: what lies where in it, how much it holds, and what goes when room is needed.

files/<identity>              a whole, verified copy of a file
files/<identity>.part         a download under way, already as long as it will be, so that it counts in full
entries/<sha256 of the key>/  a published folder; its bytes are noted in its lock file
scratch/<name>/               a task's own folder, gone with the task
…/<name>.lock                 the lock of the entry, download or scratch folder beside it
room.lock                     held while room is made
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loaders.entry_lock import EntryLock, last_used, read_note, try_lock

LOCK: Final = ".lock"
PART: Final = ".part"


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """What the cache holds."""

    bytes: int
    """Downloads under way included."""
    entries: int
    pinned: int
    """Entries in use or being written, by any process."""


@dataclass(frozen=True, slots=True)
class _Entry:
    path: Path
    lock: Path
    bytes: int


class CacheSpace:
    """The layout and the bounds of one cache folder. All methods block; processes on one machine may share a folder."""

    def __init__(self, root: Path, max_bytes: int, min_free_bytes: int) -> None:
        """`max_bytes` is what the cache may hold; `min_free_bytes` what must stay free on its disk."""
        self.root = root
        self.max_bytes = max_bytes
        self.min_free_bytes = min_free_bytes
        self.files = root / "files"
        self.entries = root / "entries"
        self.scratch = root / "scratch"
        for folder in (self.files, self.entries, self.scratch):
            folder.mkdir(parents=True, exist_ok=True)

    def make_room(self, size: int, take: Callable[[], None]) -> str | None:
        """Evict what is least recently used until `size` bytes fit, then call `take`, which takes them.

        Returns:
            None when done; else, in words, why there is no room. Nothing in use is ever evicted.

        Raises:
            OSError: from `take`.
        """
        with _waiting(self.root / f"room{LOCK}"):
            entries = list(self._all())
            held = sum(entry.bytes for entry in entries)
            pinned = 0
            for entry in sorted(entries, key=lambda entry: last_used(entry.lock)):
                if held + size <= self.max_bytes and self._missing(size) <= 0:
                    break
                if self._evict(entry):
                    held -= entry.bytes
                else:
                    pinned += entry.bytes
            if held + size > self.max_bytes:
                return (
                    f"the file cache at {self.root} may hold {self.max_bytes:,} bytes, of which {pinned:,} are in use. "
                    "Give it more, or try again in a moment."
                )
            if (missing := self._missing(size)) > 0:
                return (
                    f"the disk of {self.root} needs {missing:,} bytes more for it, with {self.min_free_bytes:,} left "
                    "free. Free some space there."
                )
            take()
            return None

    def usage(self) -> CacheUsage:
        """What the cache holds now."""
        held = pinned = count = 0
        for entry in self._all():
            count += 1
            held += entry.bytes
            lock = try_lock(entry.lock, exclusive=True)
            if lock is None:
                pinned += 1
            else:
                _let_go(lock, entry.path)
        return CacheUsage(held, count, pinned)

    def sweep(self) -> None:
        """Remove what dead processes have left behind: half downloads, scratch folders, locks of nothing."""
        for folder in (self.files, self.entries, self.scratch):
            for name in {path.name.removesuffix(LOCK).removesuffix(PART) for path in folder.iterdir()}:
                lock = try_lock(folder / (name + LOCK), exclusive=True)
                if lock is None:
                    continue
                (folder / (name + PART)).unlink(missing_ok=True)
                if folder == self.scratch:
                    shutil.rmtree(folder / name, ignore_errors=True)
                _let_go(lock, folder / name)

    def remove_folder(self, folder: Path) -> None:
        """Remove a folder of this file system so that nobody ever sees half of it."""
        name = f"gone-{uuid.uuid4().hex}"
        lock = try_lock(self.scratch / (name + LOCK), exclusive=True)
        assert lock is not None
        try:
            gone = folder.rename(self.scratch / name)
            shutil.rmtree(gone, ignore_errors=True)
        finally:
            lock.retire()

    def _all(self) -> Iterator[_Entry]:
        for found in os.scandir(self.files):
            if not found.name.endswith(LOCK):
                # A download that ends right now has just lost the suffix under which it was listed.
                whole = self.files / found.name.removesuffix(PART)
                path = next((path for path in (Path(found.path), whole) if path.exists()), whole)
                try:
                    size = path.stat().st_size
                except FileNotFoundError:
                    continue
                yield _Entry(path, self.files / (whole.name + LOCK), size)
        for found in os.scandir(self.entries):
            if not found.name.endswith(LOCK):
                lock = self.entries / (found.name + LOCK)
                note = read_note(lock)
                path = Path(found.path)
                yield _Entry(path, lock, int(note) if note.isdecimal() else folder_bytes(path))

    def _missing(self, size: int) -> int:
        return size + self.min_free_bytes - free_bytes(self.root)

    def _evict(self, entry: _Entry) -> bool:
        lock = try_lock(entry.lock, exclusive=True)
        if lock is None:
            return False
        try:
            if entry.path.parent == self.entries:
                if entry.path.exists():
                    self.remove_folder(entry.path)
            else:
                entry.path.unlink(missing_ok=True)
        finally:
            _let_go(lock, entry.path.with_name(entry.path.name.removesuffix(PART)))
        return True


def free_bytes(path: Path) -> int:
    """What an unprivileged process may still write to the disk of `path`."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def folder_bytes(folder: Path) -> int:
    """The size of all files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


@contextmanager
def _waiting(path: Path) -> Iterator[None]:
    """Holds an exclusive lock that is only ever held for moments."""
    while (lock := try_lock(path, exclusive=True)) is None:
        time.sleep(0.005)
    try:
        yield
    finally:
        lock.release()


def _let_go(lock: EntryLock, data: Path) -> None:
    if data.exists() or data.with_name(data.name + PART).exists():
        lock.release()
    else:
        lock.retire()
