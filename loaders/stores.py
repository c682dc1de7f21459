"""Where log roots are: one `Store` for each, over a local folder, a GCS bucket or an S3 bucket.

Log roots are only ever read, and no request needs more than the permission to list and read objects. `object_store` is
for places of our own, which are written to.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from loaders.errors import BadParameter
from loaders.stored_file import FILE_SCHEME, Checksum, Skipped, StoredFile

if TYPE_CHECKING:
    import obstore.store

__all__ = ["Checksum", "Skipped", "Store", "StoreOptions", "StoredFile", "canonical_uri", "object_store", "open_store"]

_importing = threading.Lock()
_SCHEME: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_SUPPORTED: Final = "a local folder, gs://bucket/prefix or s3://bucket/prefix"


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How to reach stores."""

    gcs_endpoint: str | None = None
    """A GCS emulator or private endpoint (`STORAGE_EMULATOR_HOST`), asked without credentials; `http://` unless it says
    otherwise."""
    s3: Mapping[str, str] = field(default_factory=dict)
    """The `AWS_*` variables that are set: endpoint, region, credentials."""
    connect_timeout: float = 5.0
    """Seconds until a connection must stand; also for how long a failing listing is tried again."""
    stall_timeout: float = 20.0
    """Seconds without a byte after which a connection counts as broken."""


class Store(Protocol):
    """The files below one log root."""

    uri: str
    """The log root's canonical uri."""

    def list(self) -> AsyncIterator[Sequence[StoredFile | Skipped]]:
        """All files below the root, flat, in pages of at most 1,000; one page per request to the store.

        Raises:
            NotFound: the folder or bucket does not exist. A prefix without objects is an empty listing.
            AccessDenied: the store refuses our credentials, or there are none.
            StoreUnreachable: it does not answer, or answers with errors of its own.
        """

    async def head(self, uri: str) -> StoredFile:
        """One file below the root, as it is now.

        Raises:
            NotFound, AccessDenied, StoreUnreachable: as for `list`.
        """

    def read(self, file: StoredFile, start: int = 0) -> AsyncGenerator[bytes, None]:
        """The bytes of exactly this file from offset `start`, in chunks; they have the buffer protocol.

        One attempt: a broken or stalled connection is for the caller to resume from where it got to.

        Raises:
            ObjectChanged: there is another file under this name now.
            NotFound, AccessDenied, StoreUnreachable: as for `list`.
        """

    async def checksum(self, file: StoredFile) -> Checksum | None:
        """The file's checksum, where the store knows one."""


def canonical_uri(text: str) -> str:
    """The one way to write a log root or file: `file:///absolute/path`, `gs://bucket/key`, `s3://bucket/key`.

    Takes paths (relative, with `~`), and uris with doubled or trailing slashes. Links are not resolved.

    Raises:
        BadParameter: an unsupported scheme, no bucket, or a path that leads out of its bucket.
    """
    if not text.strip():
        raise BadParameter(f"An empty log root. Give {_SUPPORTED}.")
    if "\0" in text:
        raise BadParameter(f"{text!r} holds a NUL character. Give {_SUPPORTED}.")
    match = _SCHEME.fullmatch(text)
    if match is None:
        return FILE_SCHEME + _absolute(text)
    scheme, rest = match["scheme"].lower(), match["rest"]
    if scheme == "file":
        if not rest.startswith("/"):
            raise BadParameter(f"{text!r} must have three slashes, as in file:///absolute/path.")
        return FILE_SCHEME + _absolute(rest)
    if scheme not in ("gs", "s3"):
        raise BadParameter(f"{scheme}:// in {text!r} is not supported. Give {_SUPPORTED}.")
    bucket, *parts = rest.split("/")
    if not _BUCKET.fullmatch(bucket):
        raise BadParameter(f"{text!r} names no bucket. Give {scheme}://bucket/prefix.")
    key = [part for part in parts if part]
    if "." in key or ".." in key:
        raise BadParameter(f"{text!r} has '.' or '..' as a part of its path, which buckets do not follow.")
    return f"{scheme}://{'/'.join([bucket, *key])}"


def open_store(uri: str, options: StoreOptions) -> Store:
    """The store of a log root, given by its canonical uri. Nothing is asked of it yet.

    Raises:
        BadParameter: as for `canonical_uri`, or settings that the store's client does not understand.
    """
    uri = canonical_uri(uri)
    # Imported here since the clients of stores that are not used cost a moment and tens of megabytes; one at a time,
    # since threads that import parts of one package at once may see it half made.
    with _importing:
        if uri.startswith("gs://"):
            from loaders.gcs_store import GcsStore

            return GcsStore(uri, options.gcs_endpoint, options.connect_timeout, options.stall_timeout)
        if uri.startswith("s3://"):
            from loaders.s3_store import S3Store

            return S3Store(uri, options.s3, options.connect_timeout, options.stall_timeout)
        from loaders.local_store import LocalStore

        return LocalStore(uri)


def object_store(uri: str, options: StoreOptions) -> obstore.store.ObjectStore:
    """obstore's client for what lies below `uri`, for reading and writing. Blocks while it looks for credentials.

    Raises:
        BadParameter: as for `open_store`.
        AccessDenied: there are credentials, but they cannot be used.
        StoreUnreachable: credentials cannot be looked up.
    """
    uri = canonical_uri(uri)
    if uri.startswith("gs://"):
        from loaders.gcs_store import connect_for_writing

        return connect_for_writing(uri, options.gcs_endpoint, options.connect_timeout, options.stall_timeout).objects
    if uri.startswith("s3://"):
        from loaders.object_stream import FEW_RETRIES
        from loaders.s3_store import connect

        return connect(uri, options.s3, options.connect_timeout, options.stall_timeout, retries=FEW_RETRIES)
    from obstore.store import LocalStore

    return LocalStore(uri.removeprefix(FILE_SCHEME), mkdir=True)


def _absolute(path: str) -> str:
    absolute = os.path.abspath(Path(path).expanduser())  # noqa: PTH100 - links stay as they are given
    # POSIX gives two leading slashes a meaning of their own, and so abspath keeps them.
    return "/" + absolute.lstrip("/")
