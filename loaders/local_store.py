"""Log roots in local folders, network mounts included."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from loaders.errors import AccessDenied, NotFound, ObjectChanged, StoreUnreachable
from loaders.stored_file import FILE_SCHEME, Checksum, Skipped, StoredFile
from loaders.unbroken import in_thread

_PAGE: Final = 1000
_CHUNK: Final = 4 << 20
_UNREADABLE: Final = "folders that cannot be read"
_OUTSIDE: Final = "links that lead out of the log root"
_CIRCLE: Final = "links to folders that are listed already"
_BROKEN: Final = "links that lead nowhere"
_SPECIAL: Final = "pipes, sockets and devices"
_VANISHING: Final = "files that cannot be looked at"


class LocalStore:
    """The files below a local folder."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._root = uri.removeprefix(FILE_SCHEME)

    async def list(self) -> AsyncIterator[Sequence[StoredFile | Skipped]]:
        """All files below the root; see `Store.list`. Links are followed where they stay inside the root."""
        walk = await asyncio.to_thread(self._walk)
        while page := await asyncio.to_thread(lambda: list(islice(walk, _PAGE))):
            yield page

    async def head(self, uri: str) -> StoredFile:
        """One file; see `Store.head`."""
        return await asyncio.to_thread(self.look, uri)

    def look(self, uri: str) -> StoredFile:
        """One file, as `head` gives it, without leaving the thread."""
        return _look(self._path(uri))

    async def read(self, file: StoredFile, start: int = 0) -> AsyncGenerator[bytes, None]:
        """The file's bytes; see `Store.read`."""
        descriptor = await in_thread(lambda: open_unchanged(file))
        try:
            while chunk := await in_thread(partial(os.pread, descriptor, _CHUNK, start)):
                start += len(chunk)
                yield chunk
        finally:
            os.close(descriptor)

    async def checksum(self, file: StoredFile) -> Checksum | None:
        """None: file systems keep no checksums that can be asked for."""
        return None

    def _path(self, uri: str) -> str:
        path = uri.removeprefix(FILE_SCHEME)
        real = os.path.realpath(path)
        if not uri.startswith(FILE_SCHEME) or not _inside(real, os.path.realpath(self._root)):
            raise NotFound(f"{uri} is not below the log root {self.uri}.")
        return path

    def _walk(self) -> Iterator[StoredFile | Skipped]:
        try:
            entries = os.scandir(self._root)
        except FileNotFoundError:
            raise NotFound(f"The folder {self._root} does not exist. Create it, or correct the log root.") from None
        except NotADirectoryError:
            raise NotFound(f"{self._root} is not a folder. Give the folder it is in as the log root.") from None
        except PermissionError:
            raise AccessDenied(
                f"The folder {self._root} may not be listed by this process. Give its user the permission to read it."
            ) from None
        except OSError as error:
            raise _unreachable(self._root, error) from error
        entries.close()
        return _Walk(self._root).files()


class _Walk:
    """One pass over a tree. Every folder is listed once where it is, and at most once through a link."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._real_root = os.path.realpath(root)
        self._linked: set[tuple[int, int]] = set()

    def files(self) -> Iterator[StoredFile | Skipped]:
        # A stack instead of recursion: trees may be deeper than Python's stack.
        pending: list[tuple[str, frozenset[tuple[int, int]]]] = [(self._root, frozenset())]
        while pending:
            folder, above = pending.pop()
            try:
                with os.scandir(folder) as entries:
                    here = Path(folder).stat()
                    found = sorted(entries, key=lambda entry: entry.name)
            except OSError:
                yield Skipped(FILE_SCHEME + folder, _UNREADABLE)
                continue
            chain = above | {(here.st_dev, here.st_ino)}
            below = []
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    below.append((entry.path, chain))
                    continue
                outcome = self._file_or_link(entry, chain)
                if outcome is None:
                    below.append((entry.path, chain))
                else:
                    yield outcome
            pending.extend(reversed(below))

    def _file_or_link(self, entry: os.DirEntry[str], chain: frozenset[tuple[int, int]]) -> StoredFile | Skipped | None:
        """The file, or why it is left out; None for a link to a folder that is to be listed."""
        uri = FILE_SCHEME + entry.path
        try:
            if entry.is_symlink() and not _inside(os.path.realpath(entry.path), self._real_root):
                return Skipped(uri, _OUTSIDE)
            found = entry.stat()
        except FileNotFoundError:
            return Skipped(uri, _BROKEN if entry.is_symlink() else _VANISHING)
        except OSError:
            return Skipped(uri, _CIRCLE if entry.is_symlink() else _VANISHING)
        if stat.S_ISDIR(found.st_mode):
            target = (found.st_dev, found.st_ino)
            if target in chain or target in self._linked:
                return Skipped(uri, _CIRCLE)
            self._linked.add(target)
            return None
        if not stat.S_ISREG(found.st_mode):
            return Skipped(uri, _SPECIAL)
        return StoredFile.from_stat(entry.path, found)


def open_unchanged(file: StoredFile) -> int:
    """A descriptor open for reading exactly the local file that was listed; the caller closes it.

    Raises:
        NotFound: the file is gone.
        AccessDenied: it may not be read by this process.
        ObjectChanged: there is another file under its name now.
        StoreUnreachable: the disk or network mount has errors.
    """
    path = file.uri.removeprefix(FILE_SCHEME)
    try:
        # Non-blocking, since a pipe that took the file's place would block until somebody writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise _explain(path, error) from error
    found = StoredFile.from_stat(path, os.fstat(descriptor))
    if found.identity != file.identity:
        os.close(descriptor)
        raise ObjectChanged(f"{path} has changed since it was listed. Try again in a moment.")
    return descriptor


def _look(path: str) -> StoredFile:
    try:
        found = Path(path).stat()
    except OSError as error:
        raise _explain(path, error) from error
    if not stat.S_ISREG(found.st_mode):
        raise NotFound(f"{path} is not a file.")
    return StoredFile.from_stat(path, found)


def _explain(path: str, error: OSError) -> NotFound | AccessDenied | StoreUnreachable:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return NotFound(f"{path} is gone. It was deleted or moved after it was listed.")
    if isinstance(error, PermissionError):
        return AccessDenied(f"{path} may not be read by this process. Give its user the permission to read it.")
    return _unreachable(path, error)


def _unreachable(path: str, error: OSError) -> StoreUnreachable:
    return StoreUnreachable(f"{path} cannot be read: {error.strerror or error}. Check the disk or network mount.")


def _inside(path: str, root: str) -> bool:
    return path == root or Path(path).is_relative_to(root)
