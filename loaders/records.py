"""The form in which tool data is kept and sent: one byte string with a small header and each encoding's bytes.

Layout: `b"XPH1"`, the header's length and CRC-32 (4 bytes each, little endian), the header (JSON, UTF-8), then the
encodings' bytes in the header's order. Every encoding has a CRC-32, too: a damaged record is found out and made again.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import zstandard
from isal import igzip

_MAGIC: Final = b"XPH1"
_PREFIX: Final = struct.Struct("<4sII")
_GZIP_LEVEL: Final = 1
_ZSTD_LEVEL: Final = 1


class DamagedRecord(Exception):
    """Bytes that are not a whole record."""


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """What is known of an answer besides its bytes."""

    content_type: str
    size: int
    """Bytes of the answer before compression."""
    engine: str
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Hosts that the answer does not cover, with the reason for each."""
    seconds: float = 0.0
    """How long the engine took."""
    peak_bytes: int = 0
    """The largest resident size of the engine's process."""
    hidden_events: int = 0
    """Events of a trace that were left out to keep its size; the answer says so itself."""


class Record:
    """A view of one record's bytes."""

    def __init__(self, data: bytes | memoryview) -> None:
        """Raises DamagedRecord unless `data` starts with a header whose encodings fill the rest exactly."""
        self._data = memoryview(data).cast("B")
        if len(self._data) < _PREFIX.size:
            raise DamagedRecord("shorter than its prefix")
        magic, length, crc = _PREFIX.unpack_from(self._data)
        start = _PREFIX.size + length
        if magic != _MAGIC or start > len(self._data):
            raise DamagedRecord("no record's prefix")
        if zlib.crc32(self._data[_PREFIX.size : start]) != crc:
            raise DamagedRecord("the header does not match its checksum")
        try:
            fields: dict[str, Any] = json.loads(bytes(self._data[_PREFIX.size : start]))
            parts: list[tuple[str, int, int]] = [tuple(part) for part in fields.pop("parts")]
            self.header = RecordHeader(**fields)
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedRecord(f"unreadable header: {error}") from None
        self._parts: dict[str, tuple[memoryview, int]] = {}
        for encoding, size, part_crc in parts:
            self._parts[encoding] = (self._data[start : start + size], part_crc)
            start += size
        if start != len(self._data):
            raise DamagedRecord(f"{start} bytes announced, {len(self._data)} present")

    @property
    def data(self) -> memoryview:
        """The whole record's bytes."""
        return self._data

    @property
    def encodings(self) -> tuple[str, ...]:
        """The encodings that are kept, of `gzip` and `zstd`; `identity` can always be made."""
        return tuple(self._parts)

    def __len__(self) -> int:
        return len(self._data)

    def verify(self) -> None:
        """Raises DamagedRecord unless every encoding's bytes match their checksum."""
        for encoding, (view, crc) in self._parts.items():
            if zlib.crc32(view) != crc:
                raise DamagedRecord(f"the {encoding} bytes do not match their checksum")

    def body(self, encoding: str) -> bytes:
        """The answer in `gzip`, `zstd` or `identity`."""
        if encoding == "identity":
            return zstandard.ZstdDecompressor().decompress(self.body("zstd"), max_output_size=self.header.size)
        return bytes(self._parts[encoding][0])


def record_bytes(data: bytes, header: RecordHeader, *, gzip_body: bytes | None = None) -> bytes:
    """A record of `data`, compressed once in each encoding, unless `gzip_body` is that already."""
    # Side by side: of 40 MB, each takes longer than a small answer as a whole.
    with ThreadPoolExecutor(1) as beside:
        gzip = beside.submit(lambda: gzip_body or igzip.compress(data, compresslevel=_GZIP_LEVEL, mtime=0))
        zstd = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(data)
        bodies = (("gzip", gzip.result()), ("zstd", zstd))
    fields = {
        "content_type": header.content_type,
        "size": header.size,
        "engine": header.engine,
        "left_out": dict(header.left_out),
        "seconds": round(header.seconds, 6),
        "peak_bytes": header.peak_bytes,
        "hidden_events": header.hidden_events,
        "parts": [(encoding, len(body), zlib.crc32(body)) for encoding, body in bodies],
    }
    text = json.dumps(fields, separators=(",", ":")).encode()
    return b"".join((_PREFIX.pack(_MAGIC, len(text), zlib.crc32(text)), text, *(body for _, body in bodies)))
