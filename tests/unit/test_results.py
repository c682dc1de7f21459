"""Records and the store that keeps them."""

from __future__ import annotations

import asyncio
import gzip
import os
from pathlib import Path

import pytest
import zstandard

from loaders.records import DamagedRecord, Record, RecordHeader, record_bytes
from loaders.result_store import ResultStore
from loaders.stores import StoreOptions

BODY = b'{"rows": [' + b"1," * 5000 + b"1]}"
HEADER = RecordHeader("application/json", len(BODY), "xprof 2.24.2", {"host-1": "it is empty"}, 1.5, 1 << 20)
KEY = "ab" + "0" * 62


def store(folder: Path, **options: int) -> ResultStore:
    """A store in a folder."""
    return ResultStore(f"file://{folder}", StoreOptions(), **options)


def test_a_record_gives_back_its_header_and_the_same_bytes_in_every_encoding() -> None:
    record = Record(record_bytes(BODY, HEADER))
    assert record.header == HEADER
    assert record.body("identity") == BODY
    assert gzip.decompress(record.body("gzip")) == BODY
    assert zstandard.ZstdDecompressor().decompress(record.body("zstd")) == BODY
    empty = Record(record_bytes(b"", RecordHeader("text/plain", 0, "e")))
    assert empty.body("identity") == b""


def test_the_same_data_makes_the_same_record() -> None:
    assert record_bytes(BODY, HEADER) == record_bytes(BODY, HEADER)


def test_any_truncation_or_flipped_byte_is_found() -> None:
    whole = record_bytes(BODY, HEADER)
    for cut in (0, 3, 8, 40, len(whole) // 2, len(whole) - 1):
        with pytest.raises(DamagedRecord):
            Record(whole[:cut])
    for place in range(0, len(whole), 3):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        with pytest.raises(DamagedRecord):
            Record(bytes(flipped)).verify()


async def test_a_result_survives_a_restart(tmp_path: Path) -> None:
    await store(tmp_path).put(KEY, record_bytes(BODY, HEADER))
    found = await store(tmp_path).get(KEY)
    assert found is not None
    assert found.body("identity") == BODY
    assert await store(tmp_path).get("cd" + KEY[2:]) is None


async def test_a_damaged_result_is_dropped_and_counts_as_missing(tmp_path: Path) -> None:
    await store(tmp_path).put(KEY, record_bytes(BODY, HEADER))
    path = tmp_path / KEY[:2] / KEY
    path.write_bytes(path.read_bytes()[:-5] + b"other")
    assert await store(tmp_path).get(KEY) is None
    assert not path.exists()


async def test_a_store_is_swept_to_its_size_least_recently_used_first(tmp_path: Path) -> None:
    data = record_bytes(os.urandom(40_000), RecordHeader("x", 40_000, "e"))
    keys = [f"{i:02x}" + "1" * 62 for i in range(6)]
    for number, key in enumerate(keys[:5]):
        await store(tmp_path).put(key, data)
        os.utime(tmp_path / key[:2] / key, (1000 + number, 1000 + number))
    assert await store(tmp_path).get(keys[0]) is not None
    await store(tmp_path, max_bytes=4 * len(data)).put(keys[5], data)
    left = {path.name for path in tmp_path.glob("??/*")}
    assert keys[0] in left
    assert keys[5] in left
    assert keys[1] not in left
    assert sum(path.stat().st_size for path in tmp_path.glob("??/*")) <= 4 * len(data)


async def test_a_store_that_cannot_be_written_still_answers_from_memory(tmp_path: Path) -> None:
    results = store(tmp_path / "results")
    await asyncio.to_thread((tmp_path / "results").rmdir)
    (tmp_path / "results").write_text("in the way")
    record = await results.put(KEY, record_bytes(BODY, HEADER))
    assert record.body("identity") == BODY
    again = await results.get(KEY)
    assert again is not None
