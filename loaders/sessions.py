"""Sessions and the state of log roots at one moment, as plain data that crosses processes by pickle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from loaders.session_names import base_name, folder_of
from loaders.stores import StoredFile, canonical_uri

RootStatus = Literal["listing", "ok", "empty", "forbidden", "unreachable", "missing"]


@dataclass(frozen=True, slots=True)
class HostFile:
    """One host's XPlane file."""

    host: str
    file: StoredFile


@dataclass(frozen=True, slots=True)
class Session:
    """A folder with XPlane files."""

    name: str
    """As in `/runs`: `run/session`, with the log root's name first when there are several; the folder's base name in
    answers to `by_uri` and `below`, and for folders outside `plugins/profile`."""
    root: str
    """The log root's name."""
    uri: str
    """The folder's canonical uri."""
    hosts: tuple[HostFile, ...]
    """Sorted by host name; empty files included."""
    modified: float
    """When the latest host file was written, seconds since the epoch."""
    complete: bool
    """No host file had changed for some seconds when the folder was listed."""


@dataclass(frozen=True, slots=True)
class SkippedItem:
    """Something that was seen and left out."""

    uri: str
    reason: str


@dataclass(frozen=True, slots=True)
class RootState:
    """What is known about a log root."""

    name: str
    uri: str
    status: RootStatus
    message: str
    """A sentence for people: where was looked, what was found, what was skipped, what to do."""
    objects: int
    """Objects seen by the last good pass."""
    requests: int
    """Pages the last good pass took (for a bucket: list requests)."""
    skipped: tuple[SkippedItem, ...]
    """A few examples of each kind."""
    skipped_counts: Mapping[str, int]
    """How many of each kind."""
    listed_at: float
    """When the last pass ended, good or not, seconds since the epoch; 0 before the first."""
    took: float
    """Duration of the last pass in seconds."""


@dataclass(frozen=True)
class _Index:
    by_name: Mapping[str, Session]
    by_uri: Mapping[str, Session]
    by_parent: Mapping[str, tuple[Session, ...]]


@dataclass(frozen=True)
class Snapshot:
    """All sessions of all log roots at one moment. Immutable; `version` grows when the content changes."""

    version: int
    sessions: tuple[Session, ...]
    """Sorted by name, descending."""
    roots: tuple[RootState, ...]
    """In the order they were configured."""
    loose: tuple[Session, ...] = ()
    """Folders with XPlane files outside `plugins/profile`: not listed as sessions, but opened when asked for by uri."""

    def find(self, name: str) -> Session | None:
        """The session of exactly this name."""
        return self._index.by_name.get(name)

    def by_uri(self, session_path: str) -> Session | None:
        """The session in the folder `session_path`, a path or uri, under the folder's base name.

        Finds any folder with XPlane files below a log root, nothing else.

        Raises:
            BadParameter: an unsupported scheme.
        """
        return self._index.by_uri.get(canonical_uri(session_path))

    def below(self, run_path: str) -> tuple[Session, ...]:
        """The sessions in direct child folders of `run_path`, under their base names, sorted by name, descending.

        Raises:
            BadParameter: an unsupported scheme.
        """
        return self._index.by_parent.get(canonical_uri(run_path), ())

    def prepare(self) -> Snapshot:
        """Build what the lookups need now, rather than on the first of them."""
        self._index  # noqa: B018
        return self

    def with_roots(self, roots: Iterable[RootState]) -> Snapshot:
        """The same content with fresher root states."""
        fresh = replace(self, roots=tuple(roots))
        fresh.__dict__["_index"] = self._index
        return fresh

    @cached_property
    def _index(self) -> _Index:
        by_uri: dict[str, Session] = {}
        by_parent: dict[str, list[Session]] = {}
        for session in (*self.sessions, *self.loose):
            if session.uri in by_uri:
                continue
            bare = replace(session, name=base_name(session.uri))
            by_uri[session.uri] = bare
            by_parent.setdefault(folder_of(session.uri), []).append(bare)
        return _Index(
            by_name={session.name: session for session in self.sessions},
            by_uri=by_uri,
            by_parent={
                parent: tuple(sorted(found, key=lambda session: session.name, reverse=True))
                for parent, found in by_parent.items()
            },
        )

    def __getstate__(self) -> dict[str, Any]:
        # The index is derived: it would double what travels.
        return {name: value for name, value in self.__dict__.items() if name != "_index"}
