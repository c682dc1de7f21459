"""The tables in which xprof keeps converted traces."""

from __future__ import annotations

import struct
from pathlib import Path

import cramjam
import numpy as np
import pytest

from loaders.engines.sorted_table import TableWriter, entries, entries_end, read_blocks, split


def block(items: list[tuple[bytes, bytes]]) -> bytes:
    """A block as xprof writes it: keys less what they share with the one before, every sixteenth in full."""
    body, restarts, last = b"", [], b""
    for number, (key, value) in enumerate(items):
        shared = 0
        if number % 16 == 0:
            restarts.append(len(body))
        else:
            shared = next((i for i, (a, b) in enumerate(zip(key, last, strict=False)) if a != b), len(last))
        body += bytes((shared, len(key) - shared, len(value))) + key[shared:] + value
        last = key
    return body + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


ITEMS = [(b"1%08d" % number, b"value %d" % (number * number)) for number in range(1_000)]


def read(data: bytes) -> list[tuple[bytes, bytes]]:
    return [(key, data[begin:end]) for key, begin, end in entries(data, 0, entries_end(data))]


def test_a_block_in_smaller_ones_has_the_same_entries() -> None:
    parts = list(split(np.frombuffer(block(ITEMS), dtype=np.uint8), ITEMS[-1][0], 1_000))
    assert len(parts) > 10
    assert [item for part, _, _ in parts for item in read(part)] == ITEMS
    for part, first, last in parts:
        assert len(part) < 1_500
        assert (first, last) == (read(part)[0][0], read(part)[-1][0])


def test_a_table_that_was_written_is_read_back(tmp_path: Path) -> None:
    table = tmp_path / "x.SSTABLE"
    with table.open("wb") as file:
        writer = TableWriter(file)
        handles = [(items[-1][0], *writer.add(block(items))) for items in (ITEMS[:300], ITEMS[300:])]
        writer.finish(handles)
    found = [(read(content.tobytes()), key) for content, key in read_blocks(table)]
    assert found == [(ITEMS[:300], ITEMS[299][0]), (ITEMS[300:], ITEMS[-1][0])]


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.SSTABLE"
    file.write_bytes(b"no table" * 20)
    with pytest.raises(ValueError, match=r"x\.SSTABLE is no table"):
        list(read_blocks(file))


def test_blocks_are_uncompressed_and_damage_found(tmp_path: Path) -> None:
    table = tmp_path / "x.SSTABLE"
    compressed = bytes(cramjam.snappy.compress_raw(block(ITEMS)))
    for cut in (0, 1):
        with table.open("wb") as file:
            writer = TableWriter(file)
            offset, size = writer.add(compressed[: len(compressed) - cut])
            writer.finish([(ITEMS[-1][0], offset, size)])
        data = bytearray(table.read_bytes())
        data[offset + size] = 1
        table.write_bytes(data)
        if cut:
            with pytest.raises(ValueError, match="damaged"):
                list(read_blocks(table))
        else:
            [(content, _)] = read_blocks(table)
            assert read(content.tobytes()) == ITEMS
