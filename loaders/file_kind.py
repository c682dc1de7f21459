"""Guesses what a file is that turned out not to be an XSpace, to help whoever put it there."""

from __future__ import annotations

_MAGIC = (
    (b"\x1f\x8b", "a gzip file; decompress it first"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file; decompress it first"),
    (b"BZh", "a bzip2 file; decompress it first"),
    (b"\xfd7zXZ\x00", "an xz file; decompress it first"),
    (b"PK\x03\x04", "a zip archive; unpack it first"),
    (b"PK\x05\x06", "an empty zip archive"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f", "a Riegeli file; only the plain protobuf form is read"),
)
_WHITESPACE = b"\t\n\r\f "
_LFS_POINTER = b"version https://git-lfs"


def looks_like(head: bytes) -> str | None:
    """What the first few hundred bytes of a file look like, or None when they tell nothing."""
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    if not _is_text(head):
        return None
    start = head.lstrip(b"\xef\xbb\xbf").lstrip().lower()
    if start.startswith(_LFS_POINTER):
        return "a Git LFS pointer; fetch the file itself with `git lfs pull`"
    if start.startswith((b"{", b"[")):
        return "JSON"
    if start.startswith((b"<!doctype html", b"<html", b"<head")):
        return "HTML, as a server's error or sign-in page"
    if start.startswith(b"<"):
        return "XML, as a store's error document"
    return "text"


def _is_text(head: bytes) -> bool:
    # The end may cut a character in two.
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as problem:
        if problem.start < len(head) - 3:
            return False
    return len(head) > 3 and all(byte >= 0x20 or byte in _WHITESPACE for byte in head) and 0x7F not in head
