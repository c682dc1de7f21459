"""The GCS store and the file cache against a real server, behind a proxy that does what networks do on bad days."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import obstore
import pytest

from benchmarks.gcs_emulator import GcsEmulator
from loaders.errors import (
    AccessDenied,
    CorruptTransfer,
    NotFound,
    ObjectChanged,
    StoreUnreachable,
)
from loaders.file_cache import DownloadReport, FileCache, RetryPace
from loaders.stores import Skipped, Store, StoredFile, StoreOptions, object_store, open_store
from tests.faulty_proxy import FaultyProxy

MB = 1 << 20
BUCKET = "logs"
KEY = "job/run 1/plugins/profile/2024_01_01/j-1.ray;(2)%41ü.xplane.pb"
DATA = random.Random(1).randbytes(5 * MB + 123)
QUICK = RetryPace(attempts=4, first_delay=0.01, longest_delay=0.05)


@pytest.fixture(scope="module")
def emulator() -> Iterator[GcsEmulator]:
    with GcsEmulator() as server:
        server.create_bucket(BUCKET)
        yield server


@pytest.fixture(scope="module")
def module_proxy(emulator: GcsEmulator) -> Iterator[FaultyProxy]:
    with FaultyProxy(emulator.url) as proxy:
        yield proxy


@pytest.fixture
def proxy(module_proxy: FaultyProxy, emulator: GcsEmulator) -> FaultyProxy:
    """The proxy in good health, before a bucket with one profile."""
    emulator.upload(BUCKET, KEY, DATA)
    module_proxy.heal()
    return module_proxy


def options(endpoint: str) -> StoreOptions:
    return StoreOptions(gcs_endpoint=endpoint, connect_timeout=1.0, stall_timeout=0.5)


@pytest.fixture
def store(proxy: FaultyProxy) -> Store:
    return open_store(f"gs://{BUCKET}/job", options(proxy.url))


@pytest.fixture
def reports() -> list[DownloadReport]:
    return []


@pytest.fixture
def cache(tmp_path: Path, reports: list[DownloadReport]) -> FileCache:
    return FileCache(tmp_path / "cache", 200 * MB, pace=QUICK, on_download=reports.append)


@contextmanager
def serve_once(body: bytes) -> Iterator[str]:
    """A server that gives every request this JSON; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


async def listing(store: Store) -> list[StoredFile | Skipped]:
    return [entry async for page in store.list() for entry in page]


async def the_file(store: Store) -> StoredFile:
    return await store.head(f"gs://{BUCKET}/{KEY}")


async def fetch(cache: FileCache, file: StoredFile, store: Store) -> bytes:
    async with cache.open(file, store) as path:
        return path.read_bytes()


def resumed_at(proxy: FaultyProxy) -> int:
    """The offset at which the second of two requests began."""
    first, second = (request.range for request in proxy.requests if request.kind == "get")
    assert first is None
    assert second is not None
    return int(second.removeprefix("bytes=").removesuffix("-"))


async def test_listing_head_and_reading_agree_on_an_object(store: Store, proxy: FaultyProxy) -> None:
    listed = [entry for entry in await listing(store) if isinstance(entry, StoredFile)]
    assert [file.uri for file in listed] == [f"gs://{BUCKET}/{KEY}"]
    file = listed[0]
    assert file == await the_file(store)
    assert file.size == len(DATA)
    assert file.modified == pytest.approx(time.time(), abs=60)
    assert file.version is not None
    assert file.version.isdecimal()
    assert b"".join([chunk async for chunk in store.read(file)]) == DATA
    assert b"".join([chunk async for chunk in store.read(file, len(DATA) - 7)]) == DATA[-7:]
    assert b"".join([chunk async for chunk in store.read(file, len(DATA))]) == b""
    checksum = await store.checksum(file)
    assert checksum is not None
    hasher = checksum.hasher()
    hasher.update(DATA)
    assert (checksum.algorithm, checksum.digest, checksum.certain) == ("crc32c", hasher.digest(), True)


@pytest.mark.parametrize("form", ["http://{}", "{}", "http://{}/"])
async def test_the_endpoint_may_be_given_with_and_without_scheme(proxy: FaultyProxy, form: str) -> None:
    store = open_store(f"gs://{BUCKET}/job", options(form.format(proxy.url.removeprefix("http://"))))
    assert len(await listing(store)) == 1
    assert len([chunk async for chunk in store.read(await the_file(store))]) >= 2


async def test_a_listing_costs_one_request_per_1000_objects_and_never_asks_for_the_bucket(
    proxy: FaultyProxy, emulator: GcsEmulator
) -> None:
    emulator.preload("many", [f"a/{i:05}" for i in range(2500)])
    pages = [page async for page in open_store("gs://many", options(proxy.url)).list()]
    assert [len(page) for page in pages] == [1000, 1000, 500]
    assert proxy.counts == {"list": 3}
    targets = {request.target.partition("?")[0] for request in proxy.requests}
    assert targets == {"/storage/v1/b/many/o"}
    proxy.heal()
    below = [page async for page in open_store("gs://many/none", options(proxy.url)).list()]
    assert [len(page) for page in below] == [0]
    assert proxy.counts == {"list": 1}


async def test_a_prefix_ends_at_a_slash(proxy: FaultyProxy, emulator: GcsEmulator) -> None:
    for key in ("edge/job/f", "edge/job2/f", "edge/job.f"):
        emulator.upload(BUCKET, key, b"x")
    found = await listing(open_store(f"gs://{BUCKET}/edge/job", options(proxy.url)))
    assert [entry.uri for entry in found] == [f"gs://{BUCKET}/edge/job/f"]


async def test_folder_markers_are_left_out_and_improper_names_do_not_end_the_listing() -> None:
    # The emulator keeps objects in files, which cannot have such names.
    names = ["job/a", "job//b", "job/../c", "job/d/", "job/e"]
    items = [{"name": name, "size": "1", "generation": "5", "crc32c": "AAAAAA=="} for name in names]
    with serve_once(json.dumps({"items": items}).encode()) as endpoint:
        found = await listing(open_store(f"gs://{BUCKET}/job", options(endpoint)))
    assert [(item.uri.removeprefix("gs://logs/"), getattr(item, "reason", None)) for item in found] == [
        ("job/a", None),
        ("job//b", "objects with an empty part, '.' or '..' in their names"),
        ("job/../c", "objects with an empty part, '.' or '..' in their names"),
        ("job/d/", "folder markers"),
        ("job/e", None),
    ]


async def test_nothing_outside_the_log_root_is_asked_for(proxy: FaultyProxy, store: Store) -> None:
    for uri in (f"gs://{BUCKET}/other/f", f"gs://{BUCKET}/job/../f", "gs://elsewhere/job/f", f"gs://{BUCKET}/job//f"):
        with pytest.raises(NotFound, match="not an object below the log root"):
            await store.head(uri)
    assert proxy.counts == {}


async def test_a_missing_bucket_is_named(proxy: FaultyProxy) -> None:
    with pytest.raises(NotFound, match="The bucket gs://no-such-bucket does not exist"):
        await listing(open_store("gs://no-such-bucket/p", options(proxy.url)))


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_listing_is_forbidden_with_the_role_to_give(
    proxy: FaultyProxy, store: Store, status: int
) -> None:
    proxy.status(status, "list")
    with pytest.raises(AccessDenied, match=r"gs://logs/job is denied\. .*roles/storage\.objectViewer"):
        await listing(store)


async def test_a_store_that_is_down_is_unreachable_and_named(proxy: FaultyProxy, store: Store) -> None:
    proxy.down = True
    with pytest.raises(StoreUnreachable, match=proxy.url) as caught:
        await listing(store)
    assert caught.value.retry_after
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = open_store("gs://logs", options(f"127.0.0.1:{free.getsockname()[1]}"))
        with pytest.raises(StoreUnreachable, match=r"127\.0\.0\.1"):
            await listing(nobody)


async def test_a_moment_of_bad_health_does_not_fail_a_listing(proxy: FaultyProxy, store: Store) -> None:
    proxy.status(503, "list", times=1)
    assert len(await listing(store)) == 1
    proxy.status(503, "list", times=100)
    with pytest.raises(StoreUnreachable, match="503"):
        await listing(store)


async def test_a_stalled_listing_is_unreachable_within_its_timeouts(proxy: FaultyProxy, store: Store) -> None:
    proxy.stall("list", after=10, times=100)
    started = time.monotonic()
    with pytest.raises(StoreUnreachable):
        await listing(store)
    assert time.monotonic() - started < 5


async def test_a_dropped_connection_is_resumed_by_range(
    proxy: FaultyProxy, store: Store, cache: FileCache, reports: list[DownloadReport]
) -> None:
    file = await the_file(store)
    proxy.drop("get", after=3 * MB)
    assert await fetch(cache, file, store) == DATA
    assert 2.75 * MB <= resumed_at(proxy) <= 3 * MB
    assert (reports[0].resumed, reports[0].bytes, reports[0].outcome) == (1, len(DATA), "ok")


async def test_a_stalled_connection_is_resumed_by_range(
    proxy: FaultyProxy, store: Store, cache: FileCache, reports: list[DownloadReport]
) -> None:
    file = await the_file(store)
    proxy.stall("get", after=3 * MB)
    started = time.monotonic()
    assert await fetch(cache, file, store) == DATA
    assert time.monotonic() - started < 5
    assert 2.75 * MB <= resumed_at(proxy) <= 3 * MB
    assert reports[0].resumed == 1


async def test_a_store_that_stalls_before_the_first_byte_is_tried_again(
    proxy: FaultyProxy, store: Store, cache: FileCache
) -> None:
    file = await the_file(store)
    proxy.latency(30, "get", times=1)
    assert await fetch(cache, file, store) == DATA


async def test_errors_of_the_store_are_tried_again_and_then_told(
    proxy: FaultyProxy, store: Store, cache: FileCache
) -> None:
    file = await the_file(store)
    proxy.status(503, "get", times=2)
    proxy.status(429, "get", times=3)
    assert await fetch(cache, file, store) == DATA
    proxy.status(503, "get", times=100)
    fresh = replace(file, modified=0.0, etag=None)
    with pytest.raises(StoreUnreachable, match=r"answers 503 .* after 4 attempts"):
        await fetch(cache, fresh, store)


async def test_flipped_bits_are_noticed_and_fetched_again(
    proxy: FaultyProxy, store: Store, cache: FileCache, reports: list[DownloadReport]
) -> None:
    file = await the_file(store)
    proxy.corrupt("get", at=4 * MB)
    assert await fetch(cache, file, store) == DATA
    assert (reports[0].corrupt, proxy.counts["get"]) == (1, 2)


async def test_bits_flipped_twice_are_a_corrupt_transfer(proxy: FaultyProxy, store: Store, cache: FileCache) -> None:
    file = await the_file(store)
    proxy.corrupt("get", at=4 * MB, times=2)
    with pytest.raises(CorruptTransfer, match="its crc32c does not match"):
        await fetch(cache, file, store)
    assert not cache.contains(file)


async def test_an_object_replaced_before_the_download_has_changed(
    store: Store, cache: FileCache, emulator: GcsEmulator
) -> None:
    file = await the_file(store)
    emulator.upload(BUCKET, KEY, b"new")
    with pytest.raises(ObjectChanged, match=r"has changed since it was listed"):
        await fetch(cache, file, store)
    assert await fetch(cache, await the_file(store), store) == b"new"


async def test_an_object_replaced_between_two_attempts_is_never_mixed(
    proxy: FaultyProxy, store: Store, cache: FileCache, emulator: GcsEmulator
) -> None:
    file = await the_file(store)
    other = bytes(len(DATA))
    proxy.drop("get", after=3 * MB)
    proxy.before(lambda: emulator.upload(BUCKET, KEY, other), "get", skip=1)
    with pytest.raises(ObjectChanged):
        await fetch(cache, file, store)
    assert not cache.contains(file)
    assert proxy.requests[-1].target.startswith("/storage/v1/b/logs/o/")
    assert await fetch(cache, await the_file(store), store) == other


async def test_a_store_that_sends_another_generation_than_it_was_asked_for_is_not_believed(
    store: Store, cache: FileCache
) -> None:
    file = await the_file(store)
    other = replace(file, version=None)
    with pytest.raises(ObjectChanged):
        await fetch(cache, replace(other, size=file.size + 1), store)
    real = obstore.get_async

    async def ignore_version(objects: Any, key: str, *, options: Any) -> Any:
        return await real(objects, key, options={})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(obstore, "get_async", ignore_version)
        with pytest.raises(ObjectChanged):
            await fetch(cache, replace(file, version="1"), store)


async def test_an_object_that_vanishes_is_not_found(store: Store, cache: FileCache, emulator: GcsEmulator) -> None:
    file = await the_file(store)
    emulator.delete(BUCKET, KEY)
    with pytest.raises(NotFound, match=r"ü\.xplane\.pb does not exist, or was deleted"):
        await fetch(cache, file, store)
    with pytest.raises(NotFound):
        await the_file(store)


async def test_a_forbidden_object_is_access_denied_at_once(proxy: FaultyProxy, store: Store, cache: FileCache) -> None:
    file = await the_file(store)
    proxy.status(403, "get", times=100)
    with pytest.raises(AccessDenied, match=r"xplane\.pb is denied"):
        await fetch(cache, file, store)
    assert proxy.counts["get"] == 1


async def test_files_of_a_session_are_fetched_side_by_side(
    proxy: FaultyProxy, cache: FileCache, emulator: GcsEmulator
) -> None:
    for i in range(4):
        emulator.upload(BUCKET, f"side/{i}", DATA[:1000])
    store = open_store(f"gs://{BUCKET}/side", options(proxy.url))
    found = [entry for entry in await listing(store) if isinstance(entry, StoredFile)]
    proxy.latency(0.4, "get")
    started = time.monotonic()
    assert await asyncio.gather(*(fetch(cache, file, store) for file in found)) == [DATA[:1000]] * 4
    assert time.monotonic() - started < 1.5


async def test_a_bucket_is_the_same_after_everything(proxy: FaultyProxy, store: Store, cache: FileCache) -> None:
    before = await listing(store)
    await fetch(cache, await the_file(store), store)
    assert await listing(store) == before
    assert proxy.counts["write"] == 0


CHILD = """
import asyncio, json, resource, sys
from pathlib import Path
from loaders.file_cache import FileCache
from loaders.stores import StoreOptions, open_store

async def main(endpoint, cache, uri, hold):
    store = open_store(uri.rpartition("/")[0], StoreOptions(gcs_endpoint=endpoint))
    reports = []
    files = FileCache(Path(cache), 300 << 20, on_download=reports.append)
    warm = [chunk async for chunk in store.read(await store.head(uri + ".small"))]
    file = await store.head(uri)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print("ready", flush=True)
    sys.stdin.readline()
    async with files.open(file, store) as path:
        size = path.stat().st_size
        if float(hold):
            print("holding", flush=True)
            await asyncio.sleep(float(hold))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"size": size, "downloads": len(reports), "grown_kb": grown}), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def start_child(endpoint: str, cache: Path, uri: str, hold: float = 0.0) -> asyncio.subprocess.Process:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CHILD, endpoint, str(cache), uri, str(hold)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert await say(child) == "ready"
    return child


async def say(child: asyncio.subprocess.Process) -> str:
    assert child.stdout is not None
    return (await asyncio.wait_for(child.stdout.readline(), 20)).decode().strip()


async def go(child: asyncio.subprocess.Process) -> None:
    assert child.stdin is not None
    child.stdin.write(b"\n")
    await child.stdin.drain()


@pytest.fixture(scope="module")
def large(emulator: GcsEmulator) -> str:
    """The uri of an object of 64 MiB, with a small one beside it."""
    emulator.upload(BUCKET, "large/f", random.Random(2).randbytes(64 * MB))
    emulator.upload(BUCKET, "large/f.small", b"x")
    return f"gs://{BUCKET}/large/f"


async def test_two_processes_share_one_download_and_hold_little_of_it_in_memory(
    proxy: FaultyProxy, large: str, tmp_path: Path
) -> None:
    children = await asyncio.gather(*(start_child(proxy.url, tmp_path / "cache", large) for _ in range(2)))
    proxy.heal()
    proxy.latency(0.3, "get")
    await asyncio.gather(*(go(child) for child in children))
    answers: list[dict[str, Any]] = [json.loads(await say(child)) for child in children]
    assert [await child.wait() for child in children] == [0, 0]
    assert [answer["size"] for answer in answers] == [64 * MB] * 2
    assert sorted(answer["downloads"] for answer in answers) == [0, 1]
    assert proxy.counts["get"] == 1
    assert max(answer["grown_kb"] for answer in answers) < 32 * 1024


async def test_a_process_killed_midway_does_not_keep_the_others_from_the_file(
    proxy: FaultyProxy, large: str, tmp_path: Path
) -> None:
    child = await start_child(proxy.url, tmp_path / "cache", large)
    proxy.heal()
    proxy.stall("get", after=10 * MB)
    await go(child)
    part = tmp_path / "cache/files"
    async with asyncio.timeout(10):
        while not list(part.glob("*.part")):
            await asyncio.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    await child.wait()
    store = open_store(large.rpartition("/")[0], options(proxy.url))
    cache = FileCache(tmp_path / "cache", 300 * MB)
    assert list(part.iterdir()) == []
    assert len(await fetch(cache, await store.head(large), store)) == 64 * MB


async def test_what_another_process_uses_is_not_evicted(proxy: FaultyProxy, large: str, tmp_path: Path) -> None:
    child = await start_child(proxy.url, tmp_path / "cache", large, hold=30)
    await go(child)
    assert await say(child) == "holding"
    store = open_store(f"gs://{BUCKET}", options(proxy.url))
    cache = FileCache(tmp_path / "cache", 66 * MB, room_timeout=5.0)
    assert cache.usage().pinned == 1
    opening = asyncio.create_task(fetch(cache, await the_file(store), store))
    await asyncio.sleep(0.3)
    assert not opening.done()
    child.send_signal(signal.SIGKILL)
    await child.wait()
    assert await opening == DATA
    assert cache.usage().entries == 1


NOBODY_ELSE = """
import asyncio, sys
import obstore
from loaders.stores import StoreOptions, object_store, open_store
from obstore.store import GCSStore

async def main(endpoint, careless):
    options = StoreOptions(gcs_endpoint=endpoint)
    store = open_store("gs://logs/job", options)
    files = [entry async for page in store.list() for entry in page]
    assert [chunk async for chunk in store.read(files[0])]
    assert await store.head(files[0].uri) == files[0]
    if careless == "careless":
        writable = GCSStore("logs", skip_signature=True, base_url=endpoint, retry_config={"max_retries": 0})
    else:
        writable = object_store("gs://logs/results", options)
    try:
        await obstore.put_async(writable, "k", b"x")
    except Exception as error:
        print(str(error)[:80])

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("how", ["ours", "careless"])
async def test_with_an_endpoint_nobody_else_is_asked_not_even_the_metadata_server(
    proxy: FaultyProxy, emulator: GcsEmulator, how: str
) -> None:
    with FaultyProxy(emulator.url) as trap:
        # Whoever is not on loopback is asked through the trap.
        environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        environment |= {"HTTP_PROXY": trap.url, "HTTPS_PROXY": trap.url, "NO_PROXY": "127.0.0.1"}
        environment |= {"http_proxy": trap.url, "https_proxy": trap.url, "no_proxy": "127.0.0.1"}
        trap.down = True
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", NOBODY_ELSE, proxy.url, how), env=environment, cwd=Path(__file__).parents[2]
        )
        assert await asyncio.wait_for(child.wait(), 20) == 0
        assert (trap.connections > 0) == (how == "careless")


async def test_results_are_written_below_their_prefix_without_credentials(proxy: FaultyProxy) -> None:
    results = await asyncio.to_thread(object_store, f"gs://{BUCKET}/results", options(proxy.url))
    # The emulator knows no plain XML uploads, so what counts is what is asked of it, and of whom.
    with pytest.raises(obstore.exceptions.BaseError):
        await obstore.put_async(results, "aa/key", b"x")
    assert proxy.requests[-1].target == f"/{BUCKET}/results%2Faa%2Fkey"
