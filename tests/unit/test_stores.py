from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loaders.errors import AccessDenied, BadParameter, NotFound, ObjectChanged
from loaders.stores import Checksum, Skipped, Store, StoredFile, StoreOptions, canonical_uri, open_store

OPTIONS = StoreOptions()


def make_tree(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


async def listing(store: Store) -> list[StoredFile | Skipped]:
    return [entry async for page in store.list() for entry in page]


async def files(store: Store) -> dict[str, StoredFile]:
    """The files by their path below the root."""
    return {f.uri.removeprefix(store.uri + "/"): f for f in await listing(store) if isinstance(f, StoredFile)}


async def skipped(store: Store) -> dict[str, str]:
    """The reasons by path below the root."""
    return {s.uri.removeprefix(store.uri + "/"): s.reason for s in await listing(store) if isinstance(s, Skipped)}


@contextmanager
def permissions_that_count(path: Path) -> Iterator[None]:
    """Permissions mean nothing to root, who becomes somebody else meanwhile; `path` stays within reach."""
    if os.geteuid() != 0:
        yield
        return
    for folder in (path, *path.parents):
        folder.chmod(folder.stat().st_mode | 0o055)
        if folder.parent == Path("/tmp"):
            break
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("/a/b", "file:///a/b"),
        ("/a//b/", "file:///a/b"),
        ("//a/b", "file:///a/b"),
        ("/a/./x/../b", "file:///a/b"),
        ("/", "file:///"),
        ("file:///a/b/", "file:///a/b"),
        ("FILE:///a", "file:///a"),
        ("/runs/lr=0.1:x", "file:///runs/lr=0.1:x"),
        ("/a%20b", "file:///a%20b"),
        ("gs://b", "gs://b"),
        ("gs://b/", "gs://b"),
        ("GS://b/p/", "gs://b/p"),
        ("gs://b//p///q", "gs://b/p/q"),
        ("gs://b/p q/%41;(1)", "gs://b/p q/%41;(1)"),
        ("gs://example.com:team/p", "gs://example.com:team/p"),
        ("s3://my_bucket.x/p", "s3://my_bucket.x/p"),
    ],
)
def test_every_way_to_write_a_log_root_has_one_canonical_uri(text: str, uri: str) -> None:
    assert canonical_uri(text) == uri
    assert canonical_uri(uri) == uri


def test_relative_paths_and_the_home_folder_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert canonical_uri("runs/a") == f"file://{tmp_path}/runs/a"
    assert canonical_uri(".") == f"file://{tmp_path}"
    assert canonical_uri("~/runs") == "file:///home/somebody/runs"


def test_links_in_a_log_root_stay_as_they_were_given(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert canonical_uri(f"{tmp_path}/link") == f"file://{tmp_path}/link"


@pytest.mark.parametrize("text", ["az://c/p", "http://host/p", "s3a://b/p", "hdfs://x"])
def test_an_unsupported_scheme_is_refused_with_the_supported_ones_named(text: str) -> None:
    with pytest.raises(BadParameter, match=r"not supported.*local folder.*gs://.*s3://"):
        canonical_uri(text)


@pytest.mark.parametrize(
    "text", ["", "  ", "gs://", "gs:///p", "s3://", "gs://b/../c", "gs://b/./c", "file://a/b", "a\0b"]
)
def test_what_names_no_place_is_refused(text: str) -> None:
    with pytest.raises(BadParameter):
        canonical_uri(text)


def test_identity_changes_with_everything_that_tells_contents_apart() -> None:
    base = StoredFile("gs://b/k", 10, 1.0, "e", "1")
    others = [
        StoredFile("gs://b/l", 10, 1.0, "e", "1"),
        StoredFile("gs://b/k", 11, 1.0, "e", "1"),
        StoredFile("gs://b/k", 10, 1.0, "f", "1"),
        StoredFile("gs://b/k", 10, 1.0, "e", "2"),
        StoredFile("gs://b/k", 10, 1.0, None, "1"),
    ]
    assert len({file.identity for file in [base, *others]}) == 6
    assert len(base.identity) == 64
    assert StoredFile("gs://b/k", 10, 2.0, "e", "1").identity == base.identity
    assert pickle.loads(pickle.dumps(base)) == base


@pytest.mark.parametrize(
    ("algorithm", "digest"),
    [("md5", "0cc175b9c0f1b6a831c399e269772661"), ("crc32c", "c1d04330")],
)
def test_checksums_compute_what_stores_mean_by_them(algorithm: str, digest: str) -> None:
    hasher = Checksum(algorithm, b"").hasher()  # type: ignore[arg-type]
    hasher.update(b"")
    hasher.update(b"a")
    assert hasher.digest().hex() == digest


async def test_a_local_listing_is_flat_and_recursive_with_hidden_and_odd_names(tmp_path: Path) -> None:
    names = ["x", "a/b/c/h(1);x.xplane.pb", ".hidden/f", "a/ü %41#?", "a=1/y"]
    make_tree(tmp_path, *names)
    (tmp_path / "empty").mkdir()
    found = await files(open_store(str(tmp_path), OPTIONS))
    assert sorted(found) == sorted(names)
    file = found["a/b/c/h(1);x.xplane.pb"]
    assert file.uri == f"file://{tmp_path}/a/b/c/h(1);x.xplane.pb"
    assert file.local_path == tmp_path / "a/b/c/h(1);x.xplane.pb"
    assert file.size == len("a/b/c/h(1);x.xplane.pb")
    assert file.modified == pytest.approx(file.local_path.stat().st_mtime)
    assert file.version is None


async def test_a_local_listing_comes_in_pages_of_at_most_1000(tmp_path: Path) -> None:
    make_tree(tmp_path, *(f"d{i % 7}/{i}" for i in range(2345)))
    pages = [page async for page in open_store(str(tmp_path), OPTIONS).list()]
    assert [len(page) for page in pages] == [1000, 1000, 345]
    assert len({entry.uri for page in pages for entry in page}) == 2345


async def test_an_unreadable_folder_is_skipped_with_the_reason_and_the_rest_is_listed(
    tmp_path: Path,
) -> None:
    make_tree(tmp_path, "good/f", "secret/g", "z")
    (tmp_path / "secret").chmod(0)
    store = open_store(str(tmp_path), OPTIONS)
    with permissions_that_count(tmp_path):
        assert sorted(await files(store)) == ["good/f", "z"]
        assert await skipped(store) == {"secret": "folders that cannot be read"}
    (tmp_path / "secret").chmod(0o755)


async def test_links_are_followed_inside_the_root_only(tmp_path: Path) -> None:
    root = tmp_path / "root"
    make_tree(root, "a/f", "b/c/g")
    make_tree(tmp_path, "outside/secret")
    (root / "file").symlink_to("a/f")
    (root / "latest").symlink_to("b/c")
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "outfile").symlink_to(tmp_path / "outside/secret")
    (root / "gone").symlink_to("nowhere")
    store = open_store(str(root), OPTIONS)
    assert sorted(await files(store)) == ["a/f", "b/c/g", "file", "latest/g"]
    assert await skipped(store) == {
        "out": "links that lead out of the log root",
        "outfile": "links that lead out of the log root",
        "gone": "links that lead nowhere",
    }


async def test_links_in_circles_end(tmp_path: Path) -> None:
    make_tree(tmp_path, "a/b/f")
    (tmp_path / "a/b/up").symlink_to("../..")
    (tmp_path / "a/self").symlink_to("self")
    # Folders that link to each other twice would be 2^20 paths without a bound.
    for i in range(20):
        make_tree(tmp_path, f"n{i}/f")
        (tmp_path / f"n{i}/x").symlink_to(f"../n{i + 1}")
        (tmp_path / f"n{i}/y").symlink_to(f"../n{i + 1}")
    (tmp_path / "n20").mkdir()
    found = await listing(open_store(str(tmp_path), OPTIONS))
    assert f"file://{tmp_path}/a/b/f" in {entry.uri for entry in found}
    assert len(found) < 200


async def test_a_root_that_is_itself_a_link_is_listed_under_its_given_name(tmp_path: Path) -> None:
    make_tree(tmp_path, "real/f")
    (tmp_path / "link").symlink_to("real")
    found = await files(open_store(str(tmp_path / "link"), OPTIONS))
    assert [file.uri for file in found.values()] == [f"file://{tmp_path}/link/f"]


async def test_pipes_are_left_out_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    store = open_store(str(tmp_path), OPTIONS)
    assert await skipped(store) == {"pipe": "pipes, sockets and devices"}
    with pytest.raises(NotFound, match="not a file"):
        await store.head(f"file://{tmp_path}/pipe")


async def test_a_missing_folder_and_a_file_are_told_apart(tmp_path: Path) -> None:
    make_tree(tmp_path, "file")
    with pytest.raises(NotFound, match="does not exist"):
        await listing(open_store(str(tmp_path / "none"), OPTIONS))
    with pytest.raises(NotFound, match="not a folder"):
        await listing(open_store(str(tmp_path / "file"), OPTIONS))


async def test_a_forbidden_root_is_access_denied(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(0)
    with permissions_that_count(tmp_path), pytest.raises(AccessDenied, match="root may not be listed"):
        await listing(open_store(str(root), OPTIONS))
    root.chmod(0o755)


async def test_head_and_listing_agree_and_nothing_outside_the_root_is_looked_at(tmp_path: Path) -> None:
    make_tree(tmp_path, "root/f", "outside")
    (tmp_path / "root/link").symlink_to("../outside")
    store = open_store(str(tmp_path / "root"), OPTIONS)
    assert await store.head(f"{store.uri}/f") == (await files(store))["f"]
    for uri in (f"{store.uri}/../outside", f"file://{tmp_path}/outside", f"{store.uri}/link"):
        with pytest.raises(NotFound):
            await store.head(uri)
    with pytest.raises(NotFound):
        await store.head(f"{store.uri}/none")


async def test_reading_a_local_file_starts_anywhere_and_notices_changes(tmp_path: Path) -> None:
    make_tree(tmp_path, "f")
    (tmp_path / "f").write_bytes(bytes(range(256)) * 40_000)
    store = open_store(str(tmp_path), OPTIONS)
    file = (await files(store))["f"]
    assert b"".join([chunk async for chunk in store.read(file)]) == bytes(range(256)) * 40_000
    assert b"".join([chunk async for chunk in store.read(file, 10_239_990)]) == bytes(range(246, 256))
    assert await store.checksum(file) is None
    (tmp_path / "f").write_bytes(b"new")
    with pytest.raises(ObjectChanged):
        await anext(store.read(file))
    (tmp_path / "f").unlink()
    with pytest.raises(NotFound):
        await anext(store.read(file))


def test_an_edit_that_sets_the_modification_time_back_makes_another_file(tmp_path: Path) -> None:
    path = tmp_path / "h.xplane.pb"
    path.write_bytes(b"one")
    before = path.stat()
    listed = StoredFile.from_stat(path, before)
    time.sleep(0.02)
    path.write_bytes(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert StoredFile.from_stat(path, path.stat()).identity != listed.identity
