"""What a store says about one file, as plain data that crosses processes by pickle."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

import google_crc32c

FILE_SCHEME: Final = "file://"


class Hasher(Protocol):
    """The part of `hashlib`'s objects that verifying a transfer needs."""

    def update(self, data: bytes, /) -> None:
        """Take more bytes."""

    def digest(self) -> bytes:
        """The checksum of all bytes taken so far."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """A file's checksum as the store knows it."""

    algorithm: Literal["md5", "crc32c"]
    digest: bytes
    certain: bool = True
    """False where something else may stand in its place, as in the S3 ETag of objects encrypted with KMS."""

    def hasher(self) -> Hasher:
        """A fresh object that computes this kind of checksum."""
        if self.algorithm == "md5":
            return hashlib.md5(usedforsecurity=False)
        crc32c: Hasher = google_crc32c.Checksum()  # type: ignore[no-untyped-call, unused-ignore]
        return crc32c


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a log root, as listed."""

    uri: str
    """Canonical: `gs://bucket/key`, `s3://bucket/key` or `file:///absolute/path`; keys are not percent-encoded."""
    size: int
    """Bytes."""
    modified: float
    """Seconds since the epoch."""
    etag: str | None
    """An opaque mark of the content: GCS checksum, S3 ETag, or a local file's times and inode."""
    version: str | None
    """The generation in GCS; None elsewhere, since S3 does not list version ids."""

    @property
    def identity(self) -> str:
        """64 hex digits that change whenever the content may have changed."""
        parts = (self.uri, str(self.size), self.etag or "", self.version or "")
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()

    @property
    def local_path(self) -> Path | None:
        """The path of a file in a local folder; None for objects in buckets."""
        return Path(self.uri.removeprefix(FILE_SCHEME)) if self.uri.startswith(FILE_SCHEME) else None

    @classmethod
    def from_stat(cls, path: str | os.PathLike[str], stat: os.stat_result) -> StoredFile:
        """Describe a local file from its absolute path and its `os.stat`."""
        # The change time, too: tools that copy or edit in place may set the modification time back.
        mark = f"{stat.st_mtime_ns:x}-{stat.st_ctime_ns:x}-{stat.st_ino:x}"
        return cls(FILE_SCHEME + os.fspath(path), stat.st_size, stat.st_mtime_ns / 1e9, mark, None)


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that a listing came across and left out."""

    uri: str
    reason: str
    """A kind of thing in the plural, the same for all that are left out for this reason, so that it can be counted."""
