"""Results in a bucket, where a restart and other replicas find them."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.gcs_emulator import GcsEmulator
from loaders.records import RecordHeader, record_bytes
from loaders.result_store import ResultStore
from loaders.stores import StoreOptions
from tests.faulty_proxy import FaultyProxy

KEY = "ab" + "0" * 62
RECORD = record_bytes(b"x" * 100_000, RecordHeader("application/json", 100_000, "xprof"))


@pytest.mark.parametrize("prefix", ["", "/results/of/us"])
async def test_results_kept_in_gcs_are_found_by_another_replica(prefix: str) -> None:
    with GcsEmulator() as emulator:
        emulator.create_bucket("results")
        options = StoreOptions(gcs_endpoint=emulator.url)
        uri = f"gs://results{prefix}"
        first, second = [await asyncio.to_thread(ResultStore, uri, options) for _ in range(2)]
        assert await second.get(KEY) is None
        await first.put(KEY, RECORD)
        assert emulator.keys("results") == [f"{prefix}/ab/{KEY}".lstrip("/")]
        found = await second.get(KEY)
        assert found is not None
        assert found.body("identity") == b"x" * 100_000
        await second.drop(KEY)
        assert emulator.keys("results") == []


async def test_a_result_bucket_that_is_down_costs_no_answer() -> None:
    with GcsEmulator() as emulator, FaultyProxy(emulator.url) as proxy:
        emulator.create_bucket("results")
        options = StoreOptions(gcs_endpoint=proxy.url, connect_timeout=1, stall_timeout=1)
        results = await asyncio.to_thread(ResultStore, "gs://results", options)
        proxy.status(503, times=1000)
        record = await results.put(KEY, RECORD)
        assert record.body("identity") == b"x" * 100_000
        assert await results.get("cd" + KEY[2:]) is None
