"""The S3 store and the file cache against a real server: moto, behind the proxy that does what networks do."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import boto3  # type: ignore[import-untyped, unused-ignore]
import obstore
import pytest
from moto.server import ThreadedMotoServer

from loaders.errors import AccessDenied, BadParameter, CorruptTransfer, NotFound, ObjectChanged, StoreUnreachable
from loaders.file_cache import FileCache, RetryPace
from loaders.stores import Store, StoredFile, StoreOptions, object_store, open_store
from tests.faulty_proxy import FaultyProxy

MB = 1 << 20
BUCKET = "s3logs"
KEY = "job/run 1/plugins/profile/1/h(1);%41ü.xplane.pb"
DATA = random.Random(3).randbytes(3 * MB + 5)


class S3Server:
    """moto, as another client sees it."""

    def __init__(self, url: str) -> None:
        self.url = url
        keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
        self._client = boto3.client("s3", endpoint_url=url, **keys)

    def create_bucket(self, bucket: str) -> None:
        self._client.create_bucket(Bucket=bucket)

    def upload(self, key: str, data: bytes, bucket: str = BUCKET) -> None:
        self._client.put_object(Bucket=bucket, Key=key, Body=data)

    def delete(self, key: str) -> None:
        self._client.delete_object(Bucket=BUCKET, Key=key)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    server = S3Server(f"http://{host}:{port}")
    for bucket in (BUCKET, "many", "improper"):
        server.create_bucket(bucket)
    yield server
    moto.stop()


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultyProxy]:
    server.upload(KEY, DATA)
    with FaultyProxy(server.url) as proxy:
        yield proxy


def options(endpoint: str, **more: str) -> StoreOptions:
    variables = {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    # Of others' programs, or of no use here: they must do no harm.
    variables |= {"AWS_REGION": "us-east-1", "AWS_PROFILE": "x", "AWS_CA_BUNDLE": "/nowhere", "AWS_SESSION_TOKEN": ""}
    return StoreOptions(s3=variables | more, connect_timeout=1.0, stall_timeout=1.0)


@pytest.fixture
def store(proxy: FaultyProxy) -> Store:
    return open_store(f"s3://{BUCKET}/job", options(proxy.url))


@pytest.fixture
def cache(tmp_path: Path) -> FileCache:
    return FileCache(tmp_path / "cache", 100 * MB, pace=RetryPace(attempts=3, first_delay=0.01, longest_delay=0.02))


async def files(store: Store) -> list[StoredFile]:
    return [entry async for page in store.list() for entry in page if isinstance(entry, StoredFile)]


async def fetch(cache: FileCache, file: StoredFile, store: Store) -> bytes:
    async with cache.open(file, store) as path:
        return path.read_bytes()


async def test_listing_head_reading_and_checksum_agree_on_an_object(store: Store, cache: FileCache) -> None:
    (file,) = await files(store)
    assert file == await store.head(f"s3://{BUCKET}/{KEY}")
    assert (file.uri, file.size, file.version) == (f"s3://{BUCKET}/{KEY}", len(DATA), None)
    checksum = await store.checksum(file)
    assert checksum is not None
    assert (checksum.algorithm, checksum.digest) == ("md5", hashlib.md5(DATA).digest())
    assert await fetch(cache, file, store) == DATA


async def test_the_etag_of_a_multipart_upload_is_no_checksum(store: Store) -> None:
    file = StoredFile(f"s3://{BUCKET}/{KEY}", 1, 0.0, '"d41d8cd98f00b204e9800998ecf8427e-2"', None)
    assert await store.checksum(file) is None


async def test_a_listing_costs_one_request_per_page_of_the_store(
    proxy: FaultyProxy, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A page is 1,000 objects in S3, and here as many as moto is told.
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "10")
    for i in range(25):
        server.upload(f"a/{i:04}", b"", "many")
    assert len(await files(open_store("s3://many", options(proxy.url)))) == 25
    assert proxy.counts == {"list": 3}


async def test_a_missing_bucket_and_a_missing_object_are_told_apart(proxy: FaultyProxy, store: Store) -> None:
    with pytest.raises(NotFound, match="The bucket s3://no-such-bucket does not exist"):
        await files(open_store("s3://no-such-bucket/p", options(proxy.url)))
    with pytest.raises(NotFound, match="s3://s3logs/job/none does not exist"):
        await store.head(f"s3://{BUCKET}/job/none")
    with pytest.raises(NotFound, match="not an object below the log root"):
        await store.head(f"s3://{BUCKET}/job2/none")


@pytest.mark.parametrize("status", [401, 403])
async def test_refusals_are_forbidden_with_the_permissions_to_give(
    proxy: FaultyProxy, store: Store, cache: FileCache, status: int
) -> None:
    (file,) = await files(store)
    proxy.status(status, "list", "get", times=2)
    with pytest.raises(AccessDenied, match=r"s3://s3logs/job is denied.*s3:ListBucket"):
        await files(store)
    with pytest.raises(AccessDenied, match=r"xplane\.pb is denied"):
        await fetch(cache, file, store)


async def test_a_store_that_is_down_or_ill_is_unreachable(proxy: FaultyProxy, store: Store) -> None:
    proxy.status(503, "list", times=100)
    with pytest.raises(StoreUnreachable, match="503"):
        await files(store)
    proxy.heal()
    proxy.down = True
    with pytest.raises(StoreUnreachable, match=proxy.url):
        await files(store)


async def test_a_dropped_connection_is_resumed_by_range(proxy: FaultyProxy, store: Store, cache: FileCache) -> None:
    (file,) = await files(store)
    proxy.drop("get", after=2 * MB + 99)
    assert await fetch(cache, file, store) == DATA
    assert [request.range is None for request in proxy.requests if request.kind == "get"] == [True, False]


async def test_damage_that_differs_is_a_corrupt_transfer(proxy: FaultyProxy, store: Store, cache: FileCache) -> None:
    (file,) = await files(store)
    proxy.corrupt("get", at=MB)
    proxy.corrupt("get", at=2 * MB, times=2)
    with pytest.raises(CorruptTransfer):
        await fetch(cache, file, store)
    assert not cache.contains(file)


async def test_a_changed_object_is_never_mixed(
    proxy: FaultyProxy, store: Store, cache: FileCache, server: S3Server
) -> None:
    (file,) = await files(store)
    proxy.drop("get", after=2 * MB + 99)
    proxy.before(lambda: server.upload(KEY, bytes(len(DATA))), "get", skip=1)
    with pytest.raises(ObjectChanged):
        await fetch(cache, file, store)
    (file,) = await files(store)
    assert await fetch(cache, file, store) == bytes(len(DATA))


async def test_an_object_that_vanishes_is_not_found(store: Store, cache: FileCache, server: S3Server) -> None:
    (file,) = await files(store)
    server.delete(KEY)
    with pytest.raises(NotFound, match="was deleted"):
        await fetch(cache, file, store)


async def test_a_listing_that_the_client_cannot_read_names_the_object_that_is_in_the_way(
    proxy: FaultyProxy, server: S3Server
) -> None:
    for key in ("a", "b//c", "d"):
        server.upload(key, b"", "improper")
    with pytest.raises(StoreUnreachable, match=r"b//c.*Rename that object"):
        await files(open_store("s3://improper", options(proxy.url)))


async def test_results_can_be_written_below_a_prefix(proxy: FaultyProxy) -> None:
    results = object_store(f"s3://{BUCKET}/results/x", options(proxy.url))
    await obstore.put_async(results, "aa/key", b"hello")
    assert (await (await obstore.get_async(results, "aa/key")).bytes_async()).to_bytes() == b"hello"
    found = await files(open_store(f"s3://{BUCKET}/results", options(proxy.url)))
    assert [file.uri for file in found] == [f"s3://{BUCKET}/results/x/aa/key"]
    await obstore.delete_async(results, "aa/key")


def test_variables_that_make_no_sense_are_refused_with_the_log_root_named() -> None:
    with pytest.raises(BadParameter, match=r"AWS_\* variables do not work for s3://b"):
        open_store("s3://b", StoreOptions(s3={"AWS_ACCESS_KEY_ID": "only"}))


async def test_https_is_not_given_up_unless_the_endpoint_says_so() -> None:
    store = open_store("s3://b", options("https://127.0.0.1:1", AWS_CA_BUNDLE=""))
    with pytest.raises(StoreUnreachable, match=r"https://127\.0\.0\.1:1"):
        await files(store)
