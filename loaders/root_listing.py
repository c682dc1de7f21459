"""One pass over a log root's objects, boiled down to its sessions and to what was left out and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from loaders.session_names import XPLANE_SUFFIX, address_of, base_name, folder_of, foreign_kind, host_of, session_name
from loaders.sessions import HostFile, Session, SkippedItem
from loaders.stores import Skipped, StoredFile

LOOSE = "folders with XPlane files outside plugins/profile"
_NAME_TAKEN = "folders whose session name another folder has"
_NO_HOST = "XPlane files without a host in their name"
_NOT_UTF8 = "XPlane files whose name is not UTF-8"
_MORE_KINDS = "skipped for further reasons"
_EXAMPLES_PER_KIND = 5
_MAX_KINDS = 40


@dataclass(frozen=True, slots=True)
class RootListing:
    """What one complete pass over a log root found."""

    sessions: tuple[Session, ...]
    loose: tuple[Session, ...]
    objects: int
    pages: int
    skipped: tuple[SkippedItem, ...]
    skipped_counts: dict[str, int]


@dataclass(slots=True)
class ListingCollector:
    """Takes a root's objects page by page and keeps XPlane files only, so that huge roots cost little memory.

    `prefix` goes before every session's name: empty, or the root's name and a slash.
    """

    root_name: str
    root_uri: str
    prefix: str
    _folders: dict[str, list[HostFile]] = field(default_factory=dict)
    _objects: int = 0
    _pages: int = 0
    _counts: Counter[str] = field(default_factory=Counter)
    _examples: dict[str, list[SkippedItem]] = field(default_factory=dict)

    def add_page(self, page: Iterable[StoredFile | Skipped]) -> None:
        """Take one page of the listing."""
        self._pages += 1
        for entry in page:
            if isinstance(entry, Skipped):
                self._skip(entry.reason, entry.uri, entry.reason)
            else:
                self._objects += 1
                self._add_file(entry)

    def finish(self, settled_before: float) -> RootListing:
        """Sort out what was collected.

        A session is complete when none of its files was written after `settled_before` (seconds since the epoch).
        """
        named: dict[str, Session] = {}
        loose = []
        for uri in sorted(self._folders):
            files = self._folders[uri]
            files.sort(key=lambda host_file: host_file.host)
            modified = max(host_file.file.modified for host_file in files)
            name = session_name(uri, self.root_uri)
            session = Session(
                name=base_name(uri) if name is None else self.prefix + name,
                root=self.root_name,
                uri=uri,
                hosts=tuple(files),
                modified=modified,
                complete=modified <= settled_before,
            )
            if name is None:
                loose.append(session)
                self._skip(LOOSE, uri, f"not a …/plugins/profile/<session> folder; open it with {address_of(uri)}")
            elif session.name in named:
                taken_by = named[session.name].uri
                self._skip(
                    _NAME_TAKEN, uri, f"{taken_by} is called {session.name!r} too; open this with {address_of(uri)}"
                )
                loose.append(session)
            else:
                named[session.name] = session
        return RootListing(
            sessions=tuple(sorted(named.values(), key=lambda session: session.name, reverse=True)),
            loose=tuple(loose),
            objects=self._objects,
            pages=self._pages,
            skipped=tuple(item for items in self._examples.values() for item in items),
            skipped_counts=dict(self._counts),
        )

    def _add_file(self, file: StoredFile) -> None:
        file_name = base_name(file.uri)
        if not file_name.endswith(XPLANE_SUFFIX):
            kind = foreign_kind(file_name)
            self._skip(kind, file.uri, kind)
            return
        host = host_of(file_name)
        if host is None:
            self._skip(_NO_HOST, file.uri, f"the file must be called <host>{XPLANE_SUFFIX}")
        elif not _is_utf8(file.uri):
            readable = file.uri.encode("utf-8", "backslashreplace").decode()
            self._skip(_NOT_UTF8, readable, "its name cannot be written in an address; rename it")
        else:
            self._folders.setdefault(folder_of(file.uri), []).append(HostFile(host, file))

    def _skip(self, kind: str, uri: str, reason: str) -> None:
        if kind not in self._counts and len(self._counts) >= _MAX_KINDS:
            kind = _MORE_KINDS
        self._counts[kind] += 1
        if self._counts[kind] <= _EXAMPLES_PER_KIND:
            self._examples.setdefault(kind, []).append(SkippedItem(uri, reason))


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
