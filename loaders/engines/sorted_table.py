"""The sorted tables (`*.SSTABLE`) of LevelDB's format in which xprof keeps a converted trace.

A file is data blocks, an index block that names the last key of each data block and where it lies, and a footer. A
block is entries, each with its key less what it shares with the one before, then the offsets of those entries that are
spelled in full (restarts, every sixteenth), then how many these are. After each block come its kind of compression (one
byte) and a masked CRC-32C.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import cramjam
import google_crc32c
import numpy as np
import numpy.typing as npt

TRAILER_BYTES: Final = 5
_FOOTER: Final = struct.Struct("<40sQ")
_MAGIC: Final = 0xDB4775248B80FB57
_PLAIN, _SNAPPY = 0, 1

Bytes = npt.NDArray[np.uint8]


def read_blocks(path: Path) -> Iterator[tuple[Bytes, bytes]]:
    """Every data block of a table, uncompressed, with its last key (or one between it and the next block's first).

    Raises:
        ValueError: it is no table, or damaged.
    """
    data = memoryview(path.read_bytes())
    handles, magic = _FOOTER.unpack(data[-_FOOTER.size :])
    if magic != _MAGIC:
        raise ValueError(f"{path.name} is no table")
    # The first handle is that of another block, which is empty.
    place = _varint(handles, _varint(handles, 0)[1])[1]
    offset, place = _varint(handles, place)
    index = _block(data, offset, _varint(handles, place)[0]).tobytes()
    for key, begin, end in entries(index, 0, entries_end(index)):
        offset, place = _varint(index[begin:end], 0)
        yield _block(data, offset, _varint(index[begin:end], place)[0]), key


def entries(block: bytes, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """The entries between two offsets, of which `start` is a restart's: key, and where the value begins and ends."""
    key, place = b"", start
    while place < end:
        shared, place = _varint(block, place)
        rest, place = _varint(block, place)
        size, place = _varint(block, place)
        key = key[:shared] + block[place : place + rest]
        place += rest
        yield key, place, place + size
        place += size


def entries_end(block: bytes) -> int:
    """Where a block's entries end and its restarts begin."""
    (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    return len(block) - 4 - 4 * int(restarts)


def split(block: Bytes, last_key: bytes, target: int) -> Iterator[tuple[bytes, bytes, bytes]]:
    """A block in smaller ones of about `target` bytes each, with the first and the last key of each."""
    count = int(block[-4:].view("<u4")[0])
    end = len(block) - 4 - 4 * count
    restarts = block[end:-4].copy().view("<u4").astype(np.int64)
    first = 0
    while first < count:
        after = max(int(np.searchsorted(restarts, restarts[first] + target)), first + 1)
        begin = int(restarts[first])
        part = block[begin : int(restarts[after]) if after < count else end].tobytes()
        head = next(entries(part, 0, len(part)))[0]
        last = last_key
        if after < count:
            *_, (last, _, _) = entries(part, int(restarts[after - 1]) - begin, len(part))
        offsets = (restarts[first:after] - begin).astype("<u4").tobytes()
        yield part + offsets + struct.pack("<I", after - first), head, last
        first = after


class TableWriter:
    """Writes a table of uncompressed blocks."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.offset = 0

    def add(self, block: bytes) -> tuple[int, int]:
        """Writes a block; returns its offset and its bytes without what follows it."""
        crc = google_crc32c.value(block + b"\0")
        masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
        handle = (self.offset, len(block))
        self.copy(block + struct.pack("<BI", _PLAIN, masked))
        return handle

    def copy(self, blocks: bytes | memoryview) -> None:
        """Writes blocks as they lie in another table of this writer's, with what follows each."""
        self._file.write(blocks)
        self.offset += len(blocks)

    def finish(self, index: Iterable[tuple[bytes, int, int]]) -> None:
        """Writes what makes it a table, from every block's last key, offset and bytes."""
        other = self.add(struct.pack("<II", 0, 1))
        body, restarts = bytearray(), []
        for key, offset, size in index:
            restarts.append(len(body))
            handle = _number(offset) + _number(size)
            body += b"\0" + _number(len(key)) + _number(len(handle)) + key + handle
        restarts = restarts or [0]
        body += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
        handles = b"".join(map(_number, (*other, *self.add(bytes(body)))))
        self._file.write(_FOOTER.pack(handles, _MAGIC))


def _block(data: memoryview, offset: int, size: int) -> Bytes:
    content = data[offset : offset + size]
    match data[offset + size]:
        case 0:
            return np.frombuffer(content, dtype=np.uint8)
        case 1:
            return _uncompressed(content)
        case kind:
            raise ValueError(f"a block of unknown compression {kind}")


def _varint(data: bytes | memoryview, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, place
        shift += 7


def _number(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _uncompressed(content: memoryview) -> Bytes:
    try:
        plain: Any = cramjam.snappy.decompress_raw(content)
    except cramjam.DecompressionError as error:
        raise ValueError(f"damaged block: {error}") from None
    return np.frombuffer(plain, dtype=np.uint8)
