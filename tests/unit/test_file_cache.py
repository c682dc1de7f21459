from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from loaders import cache_space, download
from loaders.entry_lock import try_lock
from loaders.errors import (
    AccessDenied,
    CorruptTransfer,
    DiskFull,
    NotFound,
    ObjectChanged,
    ProfileError,
    StoreUnreachable,
)
from loaders.file_cache import DownloadReport, FileCache, RetryPace
from loaders.local_store import LocalStore
from loaders.stores import Checksum, Skipped, StoredFile

QUICK = RetryPace(attempts=3, progress=1000, first_delay=0.001, longest_delay=0.002)


class MemoryStore:
    """A store whose failures are scripted: each read takes the next action from `script`."""

    def __init__(self, uri: str = "gs://bucket") -> None:
        self.uri = uri
        self.data: dict[str, bytes] = {}
        self.script: list[Callable[[int, bytes], Any]] = []
        self.reads: Counter[str] = Counter()
        self.starts: list[int] = []
        self.certain = True
        self.false_checksum: bytes | None = None
        self.gate: asyncio.Event | None = None

    def add(self, name: str, size: int) -> StoredFile:
        uri = f"{self.uri}/{name}"
        self.data[uri] = random.Random(name).randbytes(size)
        return StoredFile(uri, size, 1.0, hashlib.md5(self.data[uri]).hexdigest(), "1")

    async def list(self) -> AsyncIterator[Sequence[StoredFile | Skipped]]:
        yield [StoredFile(uri, len(data), 1.0, None, None) for uri, data in self.data.items()]

    async def head(self, uri: str) -> StoredFile:
        raise NotImplementedError

    async def checksum(self, file: StoredFile) -> Checksum | None:
        digest = self.false_checksum or hashlib.md5(self.data[file.uri]).digest()
        return Checksum("md5", digest, certain=self.certain)

    async def read(self, file: StoredFile, start: int = 0) -> AsyncGenerator[bytes, None]:
        self.reads[file.uri] += 1
        self.starts.append(start)
        action = self.script.pop(0) if self.script else None
        data = self.data[file.uri]
        for offset in range(start, len(data), 1000):
            if self.gate is not None:
                await self.gate.wait()
            chunk = data[offset : offset + 1000]
            if action is not None:
                chunk = action(offset, chunk)
            yield chunk


def breaks_at(offset: int, error: Exception | None = None) -> Callable[[int, bytes], bytes]:
    def action(at: int, chunk: bytes) -> bytes:
        if at >= offset:
            raise error or StoreUnreachable("the connection broke.")
        return chunk

    return action


def flips_at(offset: int) -> Callable[[int, bytes], bytes]:
    return lambda at, chunk: chunk[:-1] + bytes([chunk[-1] ^ 1]) if at <= offset < at + len(chunk) else chunk


class Setting:
    """A cache on a folder of its own, with what it reported."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.reports: list[DownloadReport] = []
        self.store = MemoryStore()

    def cache(self, max_bytes: int = 100_000, **options: Any) -> FileCache:
        given: dict[str, Any] = {"min_free_bytes": 0, "room_timeout": 0.0, "pace": QUICK}
        return FileCache(self.root, max_bytes, on_download=self.reports.append, **given | options)

    def left(self) -> list[str]:
        """All files below the folder but the lock for making room, and whole copies with their locks."""
        names = {path.relative_to(self.root).as_posix() for path in self.root.rglob("*") if path.is_file()}
        whole = {name for name in names if name.startswith("files/") and "." not in name}
        return sorted(names - whole - {f"{name}.lock" for name in whole} - {"room.lock"})

    def age(self, file: StoredFile, seconds: float) -> None:
        used = time.time() - seconds
        os.utime(self.root / "files" / f"{file.identity}.lock", (used, used))


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path / "cache")


async def fetch(cache: FileCache, file: StoredFile, store: Any) -> bytes:
    async with cache.open(file, store) as path:
        return path.read_bytes()


async def test_a_file_is_downloaded_once_and_found_again_after_a_restart(setting: Setting) -> None:
    file = setting.store.add("a", 5500)
    assert not setting.cache().contains(file)
    assert await fetch(setting.cache(), file, setting.store) == setting.store.data[file.uri]
    restarted = setting.cache()
    assert restarted.contains(file)
    assert await fetch(restarted, file, setting.store) == setting.store.data[file.uri]
    assert setting.store.reads[file.uri] == 1
    assert [(r.uri, r.bytes, r.resumed, r.corrupt, r.outcome) for r in setting.reports] == [
        (file.uri, 5500, 0, 0, "ok")
    ]
    usage = restarted.usage()
    assert (usage.bytes, usage.entries, usage.pinned) == (5500, 1, 0)
    assert setting.left() == []


async def test_an_empty_file_is_a_file(setting: Setting) -> None:
    assert await fetch(setting.cache(), setting.store.add("a", 0), setting.store) == b""


async def test_local_files_are_not_copied_and_must_be_what_was_listed(setting: Setting, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    source = tmp_path / "logs/host.xplane.pb"
    source.write_bytes(b"one")
    store = LocalStore(f"file://{tmp_path}/logs")
    file = await store.head(f"file://{source}")
    cache = setting.cache()
    assert cache.contains(file)
    async with cache.open(file, store) as path:
        assert path == source
    assert cache.usage().entries == 0
    source.write_bytes(b"two!")
    with pytest.raises(ObjectChanged, match=r"host\.xplane\.pb has changed"):
        await fetch(cache, file, store)
    source.unlink()
    with pytest.raises(NotFound, match=r"host\.xplane\.pb is gone"):
        await fetch(cache, file, store)


async def test_many_who_open_one_file_at_once_share_one_download(setting: Setting) -> None:
    file = setting.store.add("a", 5000)
    cache = setting.cache()
    setting.store.gate = asyncio.Event()
    waiting = [asyncio.create_task(fetch(cache, file, setting.store)) for _ in range(20)]
    await asyncio.sleep(0.05)
    setting.store.gate.set()
    assert set(await asyncio.gather(*waiting)) == {setting.store.data[file.uri]}
    assert setting.store.reads[file.uri] == 1


async def test_two_caches_on_one_folder_share_one_download(setting: Setting) -> None:
    file = setting.store.add("a", 5000)
    caches = [setting.cache() for _ in range(4)]
    results = await asyncio.gather(*(fetch(cache, file, setting.store) for cache in caches))
    assert set(results) == {setting.store.data[file.uri]}
    assert setting.store.reads[file.uri] == 1


async def test_a_broken_connection_is_resumed_where_it_broke(setting: Setting) -> None:
    file = setting.store.add("a", 9000)
    setting.store.script = [breaks_at(3000), breaks_at(3000), breaks_at(8000)]
    assert await fetch(setting.cache(), file, setting.store) == setting.store.data[file.uri]
    assert setting.store.starts == [0, 3000, 3000, 8000]
    assert (setting.reports[0].resumed, setting.reports[0].bytes) == (3, 9000)


async def test_a_connection_that_ends_early_without_an_error_is_resumed_too(setting: Setting) -> None:
    file = setting.store.add("a", 5000)
    setting.store.script = [lambda at, chunk: chunk if at < 2000 else b""]
    assert await fetch(setting.cache(), file, setting.store) == setting.store.data[file.uri]
    assert setting.store.starts == [0, 2000]


async def test_a_store_that_stays_away_is_given_up_after_some_attempts_and_leaves_nothing(setting: Setting) -> None:
    file = setting.store.add("a", 5000)
    setting.store.script = [breaks_at(2000), *[breaks_at(0)] * 10]
    with pytest.raises(StoreUnreachable, match=r"Gave up after 3 attempts with 2,000 of 5,000 bytes") as caught:
        await fetch(setting.cache(), file, setting.store)
    assert caught.value.retry_after
    assert setting.store.reads[file.uri] == 3
    assert setting.reports[0].outcome == "unreachable"
    assert setting.left() == []
    setting.store.script = []
    assert await fetch(setting.cache(), file, setting.store) == setting.store.data[file.uri]


async def test_attempts_are_bounded_even_when_each_brings_something(setting: Setting) -> None:
    file = setting.store.add("a", 50_000)
    setting.store.script = [breaks_at(1000 * i) for i in range(1, 50)]
    pace = RetryPace(attempts=3, progress=1000, most_attempts=10, first_delay=0.001)
    with pytest.raises(StoreUnreachable, match="10 attempts"):
        await fetch(setting.cache(pace=pace), file, setting.store)


@pytest.mark.parametrize("error", [ObjectChanged("changed."), NotFound("gone."), AccessDenied("no.")])
async def test_what_trying_again_cannot_mend_is_told_at_once_and_nothing_is_kept(
    setting: Setting, error: ProfileError
) -> None:
    file = setting.store.add("a", 5000)
    setting.store.script = [breaks_at(3000), breaks_at(4000, error)]
    with pytest.raises(type(error), match=error.message):
        await fetch(setting.cache(), file, setting.store)
    assert setting.store.reads[file.uri] == 2
    assert not setting.cache().contains(file)
    assert setting.left() == []


async def test_damaged_bytes_are_fetched_once_more(setting: Setting) -> None:
    file = setting.store.add("a", 5000)
    setting.store.script = [flips_at(2500)]
    assert await fetch(setting.cache(), file, setting.store) == setting.store.data[file.uri]
    assert setting.store.starts == [0, 0]
    assert (setting.reports[0].corrupt, setting.reports[0].outcome) == (1, "ok")


async def test_bytes_damaged_twice_are_a_corrupt_transfer_and_are_never_used(setting: Setting) -> None:
    file = setting.store.add("a", 5000)
    setting.store.script = [flips_at(2500), flips_at(2500)]
    with pytest.raises(CorruptTransfer, match=r"gs://bucket/a arrived damaged twice"):
        await fetch(setting.cache(), file, setting.store)
    assert not setting.cache().contains(file)
    assert setting.left() == []


async def test_an_etag_that_only_looks_like_an_md5_is_found_out_once_per_store(setting: Setting) -> None:
    setting.store.certain = False
    setting.store.false_checksum = b"0" * 16
    first, second = setting.store.add("a", 3000), setting.store.add("b", 3000)
    cache = setting.cache()
    assert await fetch(cache, first, setting.store) == setting.store.data[first.uri]
    assert setting.store.reads[first.uri] == 2
    assert await fetch(cache, second, setting.store) == setting.store.data[second.uri]
    assert setting.store.reads[second.uri] == 1


async def test_damage_is_still_noticed_where_the_checksum_is_a_guess(setting: Setting) -> None:
    file = setting.store.add("a", 5000)
    setting.store.certain = False
    setting.store.script = [flips_at(2500), flips_at(3500)]
    with pytest.raises(CorruptTransfer):
        await fetch(setting.cache(), file, setting.store)


async def test_least_recently_used_files_go_first_and_the_bound_holds(setting: Setting) -> None:
    files = [setting.store.add(str(i), 10_000) for i in range(5)]
    cache = setting.cache(max_bytes=50_000)
    for age, file in zip((500, 400, 300, 200, 100), files, strict=True):
        await fetch(cache, file, setting.store)
        setting.age(file, age)
    await fetch(cache, files[0], setting.store)
    new = setting.store.add("new", 15_000)
    await fetch(cache, new, setting.store)
    assert [cache.contains(file) for file in files] == [True, False, False, True, True]
    assert cache.usage().bytes == 45_000
    assert setting.left() == []


async def test_use_is_noted_at_most_once_per_minute(setting: Setting) -> None:
    file = setting.store.add("a", 10)
    cache = setting.cache()
    await fetch(cache, file, setting.store)
    lock = setting.root / "files" / f"{file.identity}.lock"
    setting.age(file, 30)
    before = lock.stat().st_mtime
    await fetch(cache, file, setting.store)
    assert lock.stat().st_mtime == before
    setting.age(file, 90)
    await fetch(cache, file, setting.store)
    assert lock.stat().st_mtime == pytest.approx(time.time(), abs=5)


async def test_what_is_in_use_is_never_evicted(setting: Setting) -> None:
    used, idle, new = (setting.store.add(name, 10_000) for name in "abc")
    cache, other = setting.cache(max_bytes=25_000), setting.cache(max_bytes=25_000)
    await fetch(cache, idle, setting.store)
    async with cache.open(used, setting.store) as path:
        setting.age(used, 1000)
        assert cache.usage().pinned == 1
        await fetch(other, new, setting.store)
        assert path.read_bytes() == setting.store.data[used.uri]
        assert not cache.contains(idle)
        with pytest.raises(DiskFull, match=r"There is no room for gs://bucket/d .*10,000 are in use"):
            await fetch(other, setting.store.add("d", 20_000), setting.store)
    assert await fetch(other, setting.store.add("d", 20_000), setting.store)
    assert not cache.contains(used)


async def test_a_download_waits_a_while_for_entries_in_use(setting: Setting) -> None:
    used, new = (setting.store.add(name, 20_000) for name in "ab")
    cache = setting.cache(max_bytes=25_000, room_timeout=5.0)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(cache.open(used, setting.store))
        waiting = asyncio.create_task(fetch(cache, new, setting.store))
        await asyncio.sleep(0.05)
        assert not waiting.done()
    assert await waiting == setting.store.data[new.uri]


def _held(folder: Path) -> int:
    """Bytes in the folder, each file once."""
    found: dict[int, int] = {}
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            if path.suffix != ".lock":
                found[path.stat().st_ino] = path.stat().st_size
    return sum(found.values())


async def test_downloads_at_the_same_time_keep_the_bound_together(setting: Setting) -> None:
    files = [setting.store.add(str(i), 20_000) for i in range(8)]
    caches = [setting.cache(max_bytes=50_000, room_timeout=10.0) for _ in range(2)]
    highest = 0

    async def watch() -> None:
        nonlocal highest
        while True:
            # Files come, go and are renamed while they are counted: what two counts agree on was there.
            highest = max(highest, min(_held(setting.root / "files"), _held(setting.root / "files")))
            await asyncio.sleep(0.001)

    watching = asyncio.create_task(watch())
    results = await asyncio.gather(*(fetch(caches[i % 2], file, setting.store) for i, file in enumerate(files)))
    watching.cancel()
    assert results == [setting.store.data[file.uri] for file in files]
    assert 20_000 <= highest <= 50_000


async def test_a_file_larger_than_the_cache_is_refused_before_it_is_fetched(setting: Setting) -> None:
    file = setting.store.add("a", 5000)
    with pytest.raises(DiskFull, match=r"gs://bucket/a has 5,000 bytes, more than the whole file cache"):
        await fetch(setting.cache(max_bytes=4999), file, setting.store)
    assert setting.store.reads[file.uri] == 0
    assert setting.left() == []


async def test_too_little_free_space_evicts_and_is_told_before_the_download(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = setting.store.add("a", 4000), setting.store.add("b", 5000)
    cache = setting.cache(min_free_bytes=1000)

    def free(_: Path) -> int:
        return 9500 - sum(path.stat().st_size for path in (setting.root / "files").glob("*") if path.suffix != ".lock")

    monkeypatch.setattr(cache_space, "free_bytes", free)
    await fetch(cache, old, setting.store)
    await fetch(cache, new, setting.store)
    assert (cache.contains(old), cache.contains(new)) == (False, True)
    large = setting.store.add("c", 9000)
    with pytest.raises(DiskFull, match=r"needs 500 bytes more .* with 1,000 left free. Free some space"):
        await fetch(cache, large, setting.store)
    assert setting.store.reads[large.uri] == 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
async def test_a_disk_that_fails_midway_leaves_nothing_half_written(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    file = setting.store.add("a", 5000)
    write = download._write

    def full(target: Any, chunk: bytes, offset: int, hasher: Any) -> None:
        if offset >= 3000:
            raise OSError(code, os.strerror(code))
        write(target, chunk, offset, hasher)

    monkeypatch.setattr(download, "_write", full)
    cache = setting.cache()
    with pytest.raises(DiskFull, match="gs://bucket/a"):
        await fetch(cache, file, setting.store)
    assert (cache.contains(file), setting.left()) == (False, [])
    assert setting.reports[0].outcome == "disk_full"
    monkeypatch.undo()
    assert await fetch(cache, file, setting.store) == setting.store.data[file.uri]


async def test_a_full_disk_is_found_when_the_place_is_reserved(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = setting.store.add("a", 5000)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskFull, match="disk of the file cache is full"):
        await fetch(setting.cache(), file, setting.store)
    assert (setting.store.reads[file.uri], setting.left()) == (0, [])


async def test_a_caller_that_goes_away_leaves_the_download_to_the_others(setting: Setting) -> None:
    file = setting.store.add("a", 5000)
    cache = setting.cache()
    setting.store.gate = asyncio.Event()
    first, second = (asyncio.create_task(fetch(cache, file, setting.store)) for _ in range(2))
    await asyncio.sleep(0.02)
    first.cancel()
    await asyncio.sleep(0.02)
    setting.store.gate.set()
    assert await second == setting.store.data[file.uri]
    assert first.cancelled()
    assert setting.store.reads[file.uri] == 1
    assert cache.usage().pinned == 0


async def test_a_loop_that_ends_midway_leaves_nothing_behind(setting: Setting) -> None:
    file = setting.store.add("a", 5000)

    def run() -> None:
        async def main() -> None:
            setting.store.gate = asyncio.Event()
            task = asyncio.create_task(fetch(setting.cache(), file, setting.store))
            await asyncio.sleep(0.05)
            assert [name.rpartition(".")[2] for name in setting.left()] == ["lock", "part"]
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        asyncio.run(main())

    await asyncio.to_thread(run)
    assert setting.left() == []
    assert setting.reports[0].outcome == "cancelled"
    setting.store.gate = None
    assert await fetch(setting.cache(), file, setting.store) == setting.store.data[file.uri]


async def test_cancelling_at_any_moment_leaks_no_lock(setting: Setting) -> None:
    file = setting.store.add("a", 20_000)
    for moment in range(30):
        cache = setting.cache()
        task = asyncio.create_task(fetch(cache, file, setting.store))
        await asyncio.sleep(moment * 0.0005)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await fetch(cache, file, setting.store)
        assert cache.usage().pinned == 0
        (setting.root / "files" / file.identity).unlink()


async def test_a_start_removes_what_dead_processes_left_and_keeps_what_is_whole(setting: Setting) -> None:
    file = setting.store.add("a", 100)
    cache = setting.cache()
    await fetch(cache, file, setting.store)
    for name in ("files/dead.part", "files/dead.lock", "files/stray.part", "entries/dead.lock", "scratch/dead.lock"):
        (setting.root / name).write_bytes(b"")
    for name in ("dead", "unlocked"):
        (setting.root / "scratch" / name).mkdir()
        (setting.root / "scratch" / name / "f").write_bytes(b"x")
    async with cache.scratch() as alive, cache.open(file, setting.store):
        (alive / "f").write_bytes(b"x")
        restarted = setting.cache()
        assert (alive / "f").exists()
        assert [path.name for path in alive.parent.iterdir() if path.is_dir()] == [alive.name]
    assert restarted.contains(file)
    assert setting.left() == []


async def test_scratch_folders_are_fresh_and_gone_afterwards(setting: Setting) -> None:
    cache = setting.cache()
    async with cache.scratch() as one, cache.scratch() as two:
        assert one != two
        assert list(one.iterdir()) == []
        assert one.stat().st_dev == setting.root.stat().st_dev
        (one / "deep").mkdir()
        (one / "deep/f").write_bytes(b"x")
    with pytest.raises(RuntimeError):
        async with cache.scratch() as three:
            raise RuntimeError
    assert not one.exists()
    assert not two.exists()
    assert not three.exists()
    assert setting.left() == []


async def publish(cache: FileCache, key: str, **files: bytes) -> None:
    async with cache.scratch() as scratch:
        folder = scratch / "made"
        folder.mkdir()
        for name, data in files.items():
            (folder / name).write_bytes(data)
        await cache.publish_entry(key, folder)
        assert not folder.exists()


async def read_entry(cache: FileCache, key: str) -> dict[str, bytes] | None:
    async with cache.open_entry(key) as folder:
        return None if folder is None else {path.name: path.read_bytes() for path in folder.iterdir()}


async def test_a_published_folder_is_found_by_all_and_the_first_one_wins(setting: Setting) -> None:
    cache, other = setting.cache(), setting.cache()
    assert await read_entry(cache, "k/../ü") is None
    await publish(cache, "k/../ü", a=b"1", b=b"22")
    await publish(other, "k/../ü", a=b"other")
    assert await read_entry(other, "k/../ü") == {"a": b"1", "b": b"22"}
    assert await read_entry(setting.cache(), "k/../ü") == {"a": b"1", "b": b"22"}
    assert (cache.usage().bytes, cache.usage().entries) == (3, 1)


async def test_published_folders_count_and_are_evicted_unless_they_are_leased(setting: Setting) -> None:
    cache = setting.cache(max_bytes=25_000)
    await publish(cache, "one", f=b"x" * 10_000)
    await publish(cache, "two", f=b"x" * 10_000)
    async with cache.open_entry("one") as folder:
        file = setting.store.add("a", 12_000)
        await fetch(cache, file, setting.store)
        assert folder is not None
        assert (folder / "f").stat().st_size == 10_000
    assert await read_entry(cache, "two") is None
    with pytest.raises(DiskFull, match="what was derived from a profile has 25,001 bytes"):
        await publish(cache, "huge", f=b"x" * 25_001)
    assert cache.usage().bytes == 22_000
    await publish(cache, "three", f=b"x" * 25_000)
    assert (await read_entry(cache, "one"), cache.contains(file)) == (None, False)
    assert [path.name.rpartition(".")[2] for path in (setting.root / "files").iterdir()] == []


async def test_lock_files_do_not_pile_up(setting: Setting) -> None:
    cache = setting.cache(max_bytes=2500)
    for i in range(20):
        await fetch(cache, setting.store.add(str(i), 1000), setting.store)
        assert await read_entry(cache, f"missing {i}") is None
        await publish(cache, str(i), f=b"x" * 100)
    locks = list(setting.root.rglob("*.lock"))
    assert len(locks) == cache.usage().entries + 1
    assert cache.usage().bytes <= 2500


async def test_a_lock_whose_file_is_removed_between_opening_and_locking_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "entry.lock"
    flock = fcntl.flock
    removals = 2

    def remove_first(descriptor: int, operation: int) -> None:
        nonlocal removals
        if removals:
            removals -= 1
            path.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    held = try_lock(path, exclusive=True)
    assert held is not None
    monkeypatch.undo()
    assert path.exists()
    assert try_lock(path, exclusive=True) is None
    held.release()


async def test_a_copy_of_the_wrong_size_is_never_used(setting: Setting) -> None:
    file = setting.store.add("a", 5000)
    cache = setting.cache()
    await fetch(cache, file, setting.store)
    (setting.root / "files" / file.identity).write_bytes(b"cut")
    assert not cache.contains(file)
    assert await fetch(cache, file, setting.store) == setting.store.data[file.uri]


async def test_the_loop_stays_free_while_the_disk_is_slow(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    file = setting.store.add("a", 500)
    write = download._write
    ticks = 0
    seen = []

    def slow(*arguments: Any) -> None:
        before = ticks
        time.sleep(0.3)
        seen.append(ticks - before)
        write(*arguments)

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    monkeypatch.setattr(download, "_write", slow)
    ticking = asyncio.create_task(tick())
    await fetch(setting.cache(), file, setting.store)
    ticking.cancel()
    assert len(seen) == 1
    assert seen[0] > 5
