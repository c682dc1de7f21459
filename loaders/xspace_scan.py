"""A quick look at a file's wire format: is it a whole XSpace, and what is in it?

A protobuf parser only says that a file is malformed. The scan walks the lengths of the XSpace's fields and, one level
below, of its planes' fields, so that it can say what is wrong and where, before any engine is asked. It reads windows
with `pread` and skips over payloads: no memory map, because a file that shrinks under a map kills the process.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from loaders.errors import AccessDenied, InvalidProfile, NotFound, ObjectChanged, ProfileTooLarge, StoreUnreachable
from loaders.file_kind import looks_like

MAX_BYTES = 2**31 - 1
"""The largest message protobuf can parse."""

_WINDOW = 1 << 20
_LONGEST_FIELD_HEADER = 20
_LONGEST_TEXT = 1 << 20
_VARINT, _LEN = 0, 2
_FIXED = {1: 8, 5: 4}
_WIRE_TYPES = frozenset((_VARINT, _LEN, *_FIXED))
# Fields that are not known yet are let through up to this number, so that a newer XPlane stays readable.
_HIGHEST_PLAUSIBLE_FIELD = 15
_SPACE_FIELDS = {1: _LEN, 2: _LEN, 3: _LEN, 4: _LEN}
_PLANE_FIELDS = {1: _VARINT, 2: _LEN, 3: _LEN, 4: _LEN, 5: _LEN, 6: _LEN}
_PLANES, _HOSTNAMES = 1, 4
_NAME, _LINES = 2, 3
_LINES_TAG = _LINES << 3 | _LEN
_COMMON_TAGS = frozenset(number << 3 | _LEN for number in (3, 4, 5, 6))


@dataclass(frozen=True, slots=True)
class XSpaceSummary:
    """What a whole XSpace holds."""

    bytes: int
    planes: tuple[str, ...]
    """The planes' names, in the file's order."""
    lines: int
    """Lines of all planes."""
    hostnames: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlaneLayout:
    """Where a plane and its lines are in the file. Offsets are in bytes from the file's beginning."""

    name: str
    start: int
    """Of the plane's first field, behind its own header."""
    end: int
    lines: tuple[tuple[int, int], ...]
    """Begin and end of every line, with its field's header."""


@dataclass(frozen=True, slots=True)
class XSpaceLayout:
    """What a whole XSpace holds, and where."""

    bytes: int
    planes: tuple[PlaneLayout, ...]
    """In the file's order."""
    others: tuple[tuple[int, int], ...]
    """Begin and end of every field of the XSpace that is not a plane, with its header."""
    hostnames: tuple[str, ...]

    @property
    def summary(self) -> XSpaceSummary:
        """The same without offsets."""
        return XSpaceSummary(
            bytes=self.bytes,
            planes=tuple(plane.name for plane in self.planes),
            lines=sum(len(plane.lines) for plane in self.planes),
            hostnames=self.hostnames,
        )


def scan_xspace(path: Path) -> XSpaceSummary:
    """Check that `path` is a whole XSpace, and summarise it. Raises what `xspace_layout` raises."""
    return xspace_layout(path).summary


def xspace_layout(path: Path) -> XSpaceLayout:
    """Check that `path` is a whole XSpace, and find what is where in it. Blocks on the disk: call it from a thread.

    A file that was cut off exactly between two planes is a valid XSpace with fewer planes and cannot be told apart.

    Raises:
        InvalidProfile: empty, foreign, truncated or corrupt, or without any plane; says which, and at which byte.
        ProfileTooLarge: 2 GiB or more; found without reading the file.
        NotFound: there is no such file.
        AccessDenied: it may not be read.
        ObjectChanged: it shrank while it was read.
        StoreUnreachable: the disk fails.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return _scan(descriptor, path.name)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise NotFound(f"{path.name} is gone. It was deleted or moved after it was listed.") from None
    except PermissionError:
        raise AccessDenied(
            f"{path.name} may not be read by this process. Give its user the permission to read it."
        ) from None
    except OSError as problem:
        raise StoreUnreachable(f"{path.name} cannot be read: {problem.strerror}. Check its disk.") from problem


def _scan(descriptor: int, name: str) -> XSpaceLayout:
    status = os.fstat(descriptor)
    size = status.st_size
    if not stat.S_ISREG(status.st_mode):
        raise InvalidProfile(f"{name} is not a regular file.")
    if size > MAX_BYTES:
        raise ProfileTooLarge(
            f"{name} has {size:,} bytes; protobuf can parse at most {MAX_BYTES:,}. Capture for a shorter time or with"
            " fewer tracers."
        )
    if size == 0:
        raise InvalidProfile(f"{name} is empty (0 bytes): the capture did not finish, or its upload failed.")
    try:
        return _Scan(descriptor, size, name).space()
    except _Malformed as problem:
        kind = looks_like(os.pread(descriptor, 4096, 0))
        if kind:
            raise InvalidProfile(f"{name} is not an XSpace: it looks like {kind}.") from None
        raise InvalidProfile(f"{name} {problem}. Copy it again from where it was captured.") from None


class _Malformed(Exception):
    """What is wrong, as the rest of a sentence that begins with the file's name."""


class _CutOff(_Malformed):
    """The file ends where a field's header should go on."""


class _Scan:
    """Walks one file. Offsets are absolute, in bytes; `_buffer` holds the file from `_base` on, then zeros."""

    def __init__(self, descriptor: int, size: int, name: str) -> None:
        self._descriptor = descriptor
        self._size = size
        self._name = name
        self._buffer = b""
        self._base = 0

    def space(self) -> XSpaceLayout:
        planes: list[PlaneLayout] = []
        others: list[tuple[int, int]] = []
        hostnames: list[str] = []
        position = 0
        while position < self._size:
            number, start, end = self._field(position, self._size, _SPACE_FIELDS, "an XSpace")
            if number == _PLANES:
                if end > self._size:
                    raise self._truncated(len(planes), start, end)
                planes.append(self._plane(start, end, len(planes)))
                position = end
                continue
            if end > self._size:
                raise _Malformed(
                    f"is truncated: it ends in the middle of field {number} at byte {position:,},"
                    f" {end - self._size:,} bytes missing"
                )
            if number in _SPACE_FIELDS:
                text = self._text(start, end, "an XSpace's text")
                if number == _HOSTNAMES:
                    hostnames.append(text)
            others.append((position, end))
            position = end
        if not planes:
            raise _Malformed("contains no planes: the capture recorded nothing")
        return XSpaceLayout(bytes=self._size, planes=tuple(planes), others=tuple(others), hostnames=tuple(hostnames))

    def _plane(self, position: int, end: int, number_of_plane: int) -> PlaneLayout:
        """A plane's name and lines. The fast path is for fields of one tag byte and a short length."""
        name = ""
        plane_start = position
        lines: list[tuple[int, int]] = []
        base, buffer = self._base, self._buffer
        last = base + len(buffer) - _LONGEST_FIELD_HEADER
        while position < end:
            if position > last:
                self._load(position)
                base, buffer = self._base, self._buffer
                last = base + len(buffer) - _LONGEST_FIELD_HEADER
            index = position - base
            tag = buffer[index]
            if tag in _COMMON_TAGS:
                length = buffer[index + 1]
                if length < 0x80:
                    following = position + 2 + length
                elif (high := buffer[index + 2]) < 0x80:
                    following = position + 3 + (length & 0x7F | high << 7)
                else:
                    following = self._field(position, end, _PLANE_FIELDS, "a plane")[2]
                if tag == _LINES_TAG:
                    lines.append((position, following))
            else:
                number, start, following = self._field(position, end, _PLANE_FIELDS, "a plane")
                if number == _NAME and following <= end:
                    name = self._text(start, following, "a plane's name")
                elif number == _LINES:
                    lines.append((position, following))
            if following > end:
                raise _Malformed(
                    f"is corrupt: in {_plane_called(name, number_of_plane)} the field at byte {position:,} ends at byte"
                    f" {following:,}, but the plane at byte {end:,}"
                )
            position = following
        return PlaneLayout(name=name, start=plane_start, end=end, lines=tuple(lines))

    def _field(self, position: int, limit: int, known: dict[int, int], where: str) -> tuple[int, int, int]:
        """Number, start and end of the payload of the field at `position`. The end may lie past `limit`."""
        tag, after_tag = self._varint(position, limit)
        number, wire = tag >> 3, tag & 7
        possible = 0 < number <= _HIGHEST_PLAUSIBLE_FIELD and wire in _WIRE_TYPES
        if not possible or known.get(number, wire) != wire:
            raise _Malformed(
                f"{'is corrupt' if position else 'is not an XSpace'}: at byte {position:,} there is a field {number} of"
                f" wire type {wire}, which {where} cannot have"
            )
        if wire == _LEN:
            length, start = self._varint(after_tag, limit)
            if length > MAX_BYTES:
                raise _Malformed(f"is corrupt: the field at byte {position:,} claims {length:,} bytes")
            return number, start, start + length
        if wire == _VARINT:
            return number, after_tag, self._varint(after_tag, limit)[1]
        return number, after_tag, after_tag + _FIXED[wire]

    def _varint(self, position: int, limit: int) -> tuple[int, int]:
        """The number at `position` and where it ends."""
        self._load(position)
        index = position - self._base
        value = shift = 0
        while True:
            if position >= limit:
                if limit == self._size:
                    raise _CutOff(f"is truncated: it ends in the middle of a field's header at byte {limit:,}")
                raise _Malformed(f"is corrupt: a field's header runs past its plane's end at byte {limit:,}")
            byte = self._buffer[index]
            index += 1
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= 70:
                raise _Malformed(f"is corrupt: the number that ends at byte {position:,} is longer than 10 bytes")
        if value >= 1 << 64:
            raise _Malformed(f"is corrupt: the number that ends at byte {position:,} does not fit 64 bits")
        return value, position

    def _text(self, start: int, end: int, what: str) -> str:
        if end - start > _LONGEST_TEXT:
            raise _Malformed(f"is corrupt: {what} at byte {start:,} claims {end - start:,} bytes")
        try:
            return self._read(start, end - start).decode("utf-8")
        except UnicodeDecodeError:
            raise _Malformed(f"is corrupt: {what} at byte {start:,} is not UTF-8") from None

    def _truncated(self, number_of_plane: int, start: int, end: int) -> _Malformed:
        """Names the plane in whose middle the file ends, when as much of it as is there is sound."""
        name = ""
        position = start
        while position < self._size and not name:
            try:
                number, text_start, following = self._field(position, self._size, _PLANE_FIELDS, "a plane")
            except _CutOff:
                break
            if number == _NAME and following <= self._size:
                name = self._text(text_start, following, "a plane's name")
            position = following
        return _Malformed(
            f"is truncated: it ends in the middle of {_plane_called(name, number_of_plane)},"
            f" {end - self._size:,} bytes missing"
        )

    def _load(self, position: int) -> None:
        """Make sure that a field's header at `position` is in the buffer."""
        if self._base <= position <= self._base + len(self._buffer) - _LONGEST_FIELD_HEADER:
            return
        wanted = min(_WINDOW, self._size - position)
        self._buffer = self._read(position, wanted)
        if position + wanted == self._size:
            # Zeros let a header that is cut off by the end of the file be decoded, and then be found too long.
            self._buffer += bytes(_LONGEST_FIELD_HEADER)
        self._base = position

    def _read(self, position: int, length: int) -> bytes:
        parts = []
        while length:
            part = os.pread(self._descriptor, length, position)
            if not part:
                raise ObjectChanged(f"{self._name} shrank while it was read. Try again when it is whole.")
            parts.append(part)
            position += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _plane_called(name: str, number: int) -> str:
    return f"plane {name!r}" if name else f"its plane number {number + 1}"
