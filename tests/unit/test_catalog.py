"""The catalog finds every session, names it as the stock server does, and keeps up in the background."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loaders.catalog import Catalog, LogRoot, RootState, Session, Snapshot, parse_log_roots
from loaders.errors import AccessDenied, BadParameter, NotFound, StoreUnreachable
from loaders.root_listing import LOOSE
from loaders.session_names import session_name
from loaders.stores import Skipped, StoredFile, StoreOptions

OLD = time.time() - 3600
BUCKET = (LogRoot("b", "gs://b/p"),)


def _file(uri: str, modified: float = OLD, size: int = 10, etag: str = "e") -> StoredFile:
    return StoredFile(uri=uri, size=size, modified=modified, etag=etag, version=None)


class FakeStore:
    """A store whose listing the test decides. Counts passes, and how many run at once."""

    def __init__(self, *uris: str) -> None:
        self.entries: list[StoredFile | Skipped] = [_file(uri) for uri in uris]
        self.error: Exception | None = None
        self.passes = 0
        self.most_at_once = 0
        self.open_gate = asyncio.Event()
        self.open_gate.set()
        self.page_size = 1000
        self._running = 0

    async def list(self) -> AsyncIterator[Sequence[StoredFile | Skipped]]:
        self.passes += 1
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        try:
            seen = list(self.entries)
            await self.open_gate.wait()
            if self.error is not None:
                raise self.error
            for start in range(0, len(seen), self.page_size):
                yield seen[start : start + self.page_size]
        finally:
            self._running -= 1


@asynccontextmanager
async def _running(roots: Sequence[LogRoot], *stores: FakeStore, **settings: Any) -> AsyncIterator[Catalog]:
    by_uri = dict(zip((root.uri for root in roots), stores, strict=False))
    if stores:
        settings["open_store"] = lambda uri, _: by_uri[uri]
    catalog = Catalog(roots, StoreOptions(), **settings)
    await catalog.start()
    try:
        yield catalog
    finally:
        await catalog.stop()


async def _until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def _listed(*roots: LogRoot) -> Snapshot:
    async with _running(roots) as catalog:
        return await catalog.ready()


def _tree(root: Path, *paths: str) -> None:
    for path in paths:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"x")
        os.utime(target, (OLD, OLD))


def _root(path: Path | str, name: str = "logs") -> LogRoot:
    return LogRoot(name, f"file://{path}")


def _names(snapshot: Snapshot) -> list[str]:
    return [session.name for session in snapshot.sessions]


def _hosts(session: Session | None) -> list[str]:
    assert session is not None
    return [host.host for host in session.hosts]


NESTED = (
    "plugins/profile/2024_01_01_10_00_00/host-0.xplane.pb",
    "train/plugins/profile/2024_01_02/host-0.xplane.pb",
    "train/plugins/profile/2024_01_03/host-0.xplane.pb",
    "new_job/tensorboard/plugins/profile/run1/host-0.xplane.pb",
    "a/b/c/d/e/plugins/profile/s (1)%20;x=é/h.xplane.pb",
    "x/plugins/profile/plugins/profile/deep/h.xplane.pb",
    ".hidden/plugins/profile/.s/h.xplane.pb",
    "plugins/plugins/profile/odd/h.xplane.pb",
    "profile/plugins/profile/odd/h.xplane.pb",
)


def _stock_runs(logdir: Path, **arguments: str) -> list[str]:
    profile_plugin = pytest.importorskip("xprof.profile_plugin")
    context = SimpleNamespace(
        logdir=str(logdir), data_provider=None, flags=SimpleNamespace(master_tpu_unsecure_channel="")
    )
    request = SimpleNamespace(args=arguments) if arguments else None
    return list(profile_plugin.ProfilePlugin(context).runs_imp(request))


async def test_run_names_and_their_order_are_the_stock_servers(tmp_path: Path) -> None:
    _tree(tmp_path, *NESTED)
    snapshot = await _listed(_root(tmp_path))
    # Stock lists x/plugins/profile/plugins as the session "x/plugins" too, though no XPlane file is in it.
    assert _names(snapshot) == [name for name in _stock_runs(tmp_path) if name != "x/plugins"]
    assert len(_names(snapshot)) == len(NESTED)


async def test_session_path_and_run_path_find_what_the_stock_server_finds(tmp_path: Path) -> None:
    _tree(tmp_path, *NESTED, "bare/h.xplane.pb", "train/plugins/profile/empty/h.trace.json.gz")
    snapshot = await _listed(_root(tmp_path))
    for run_path in ("train/plugins/profile", "train/plugins/profile/", "plugins/profile", "a", "."):
        text = f"{tmp_path}/{run_path}"
        assert [found.name for found in snapshot.below(text)] == _stock_runs(tmp_path, run_path=text), run_path
    for session_path in ("train/plugins/profile/2024_01_03", "bare/", "train", "train/plugins/profile/empty"):
        text = f"{tmp_path}/{session_path}"
        found = snapshot.by_uri(text)
        assert ([found.name] if found else []) == _stock_runs(tmp_path, session_path=text), session_path


@pytest.mark.parametrize("place", ["train", "train/plugins", "train/plugins/profile", "train/plugins/profile/s1"])
async def test_a_root_may_lie_anywhere_around_plugins_profile(tmp_path: Path, place: str) -> None:
    _tree(tmp_path, "train/plugins/profile/s1/host-0.xplane.pb", "train/plugins/profile/s1/host-1.xplane.pb")
    snapshot = await _listed(_root(tmp_path / place))
    assert _names(snapshot) == ["s1"]
    assert _hosts(snapshot.find("s1")) == ["host-0", "host-1"]
    assert snapshot.roots[0].status == "ok"


@pytest.mark.parametrize(
    ("folder", "root", "name"),
    [
        ("gs://b/plugins/profile/s", "gs://b", "s"),
        ("gs://b/run/plugins/profile/s", "gs://b", "run/s"),
        ("gs://b/p/run/plugins/profile/s", "gs://b/p", "run/s"),
        ("gs://b/pp/plugins/profile/s", "gs://b/pp", "s"),
        ("gs://plugins/profile/s", "gs://plugins", None),
        ("gs://b/profile/s", "gs://b", None),
        ("gs://b/plugins/profile", "gs://b", None),
        ("gs://b/xplugins/profile/s", "gs://b", None),
        ("gs://b/plugins/profile/s/sub", "gs://b", None),
        ("gs://b", "gs://b", None),
        ("file:///plugins/profile/s", "file:///", "s"),
        ("file:///d/plugins/profile/s", "file:///", "d/s"),
    ],
)
def test_a_session_is_a_folder_in_plugins_profile_and_nothing_else(folder: str, root: str, name: str | None) -> None:
    assert session_name(folder, root) == name


async def test_several_roots_put_their_name_first_and_keep_sessions_apart(tmp_path: Path) -> None:
    _tree(tmp_path, "one/plugins/profile/s/h.xplane.pb", "two/run/plugins/profile/s/h.xplane.pb")
    roots = parse_log_roots([f"z={tmp_path}/one", f"{tmp_path}/two"])
    snapshot = await _listed(*roots)
    assert _names(snapshot) == ["z/s", "two/run/s"]
    assert [session.root for session in snapshot.sessions] == ["z", "two"]
    assert [state.name for state in snapshot.roots] == ["z", "two"]
    bare = snapshot.by_uri(f"{tmp_path}/two/run/plugins/profile/s")
    assert bare is not None
    assert (bare.name, bare.root) == ("s", "two")


async def test_hosts_are_file_names_less_the_suffix_never_parsed_further(tmp_path: Path) -> None:
    hosts = ["34.83.195.179_6003", "a;b=c", "j-1f2e-ray-node-1-0", "local.", "x y(1)%2F", "z.xplane", "ä"]
    _tree(tmp_path, *(f"plugins/profile/s/{host}.xplane.pb" for host in hosts))
    snapshot = await _listed(_root(tmp_path))
    assert _hosts(snapshot.find("s")) == sorted(hosts)


async def test_an_empty_xplane_file_stays_a_host(tmp_path: Path) -> None:
    _tree(tmp_path, "plugins/profile/s/good.xplane.pb")
    (tmp_path / "plugins/profile/s/empty.xplane.pb").touch()
    session = (await _listed(_root(tmp_path))).find("s")
    assert session is not None
    assert [(host.host, host.file.size) for host in session.hosts] == [("empty", 0), ("good", 1)]


async def test_foreign_and_legacy_files_are_ignored_and_counted(tmp_path: Path) -> None:
    _tree(
        tmp_path,
        "plugins/profile/s/h.xplane.pb",
        "plugins/profile/s/h.SSTABLE",
        "plugins/profile/s/ALL_HOSTS.op_stats_v2.pb",
        "plugins/profile/s/jit_f(1).hlo_proto.pb",
        "plugins/profile/s/cache_version.txt",
        "plugins/profile/s/h.trace.json.gz",
        "plugins/profile/old/h.trace.json.gz",
        "plugins/profile/riegeli/h.xplane.riegeli",
        "plugins/profile/s/.xplane.pb",
        "events.out.tfevents.123",
        "checkpoint-100/shard-0.data",
    )
    snapshot = await _listed(_root(tmp_path))
    assert _names(snapshot) == ["s"]
    assert _hosts(snapshot.find("s")) == ["h"]
    state = snapshot.roots[0]
    assert state.objects == 11
    assert state.skipped_counts == {
        "files XProf caches beside profiles": 4,
        "files of old profile formats (only *.xplane.pb is read)": 2,
        "XPlane files in Riegeli form (only *.xplane.pb is read)": 1,
        "XPlane files without a host in their name": 1,
        "TensorBoard event files": 1,
        "other files": 1,
    }


async def test_loose_folders_are_not_sessions_but_open_by_uri_and_are_explained(tmp_path: Path) -> None:
    _tree(tmp_path, "bare/h.xplane.pb", "plugins/profile/s/sub #1&2/h.xplane.pb")
    snapshot = await _listed(_root(tmp_path))
    assert snapshot.sessions == ()
    state = snapshot.roots[0]
    assert state.status == "empty"
    assert state.skipped_counts == {LOOSE: 2}
    assert {item.uri: item.reason for item in state.skipped}[f"file://{tmp_path}/bare"].endswith(
        f"open it with /?session_path=file://{tmp_path}/bare"
    )
    assert state.skipped[1].reason.endswith("plugins/profile/s/sub%20%231%262")
    assert "No session was found" in state.message
    assert str(tmp_path) in state.message
    assert "plugins/profile/<session>/<host>.xplane.pb" in state.message
    for spelling in (f"{tmp_path}/bare", f"file://{tmp_path}/bare/", f"{tmp_path}/plugins/../bare"):
        session = snapshot.by_uri(spelling)
        assert session is not None
        assert (session.name, _hosts(session)) == ("bare", ["h"])
    assert [found.name for found in snapshot.below(str(tmp_path))] == ["bare"]


async def test_lookups_stay_below_the_roots(tmp_path: Path) -> None:
    _tree(tmp_path, "in/plugins/profile/s/h.xplane.pb", "out/plugins/profile/secret/h.xplane.pb")
    snapshot = await _listed(_root(tmp_path / "in"))
    inside = f"{tmp_path}/in/plugins/profile"
    for text in (f"{tmp_path}/out/plugins/profile/secret", f"{inside}/../../../out/plugins/profile/secret", "/", "s"):
        assert snapshot.by_uri(text) is None
        assert snapshot.below(text) == ()
    for name in ("../out/secret", f"{inside}/s", "s/", "S", "", "secret"):
        assert snapshot.find(name) is None
    with pytest.raises(BadParameter):
        snapshot.by_uri("http://example.com/s")


async def test_a_name_that_two_folders_claim_goes_to_one_and_the_other_stays_reachable(tmp_path: Path) -> None:
    _tree(tmp_path, "plugins/profile/s/first.xplane.pb", "plugins/plugins/profile/s/second.xplane.pb")
    snapshot = await _listed(_root(tmp_path / "plugins"))
    assert _names(snapshot) == ["s"]
    assert snapshot.roots[0].skipped_counts == {"folders whose session name another folder has": 1}
    hosts = [_hosts(snapshot.by_uri(f"{tmp_path}/plugins/{path}")) for path in ("profile/s", "plugins/profile/s")]
    assert hosts == [["first"], ["second"]]


async def test_a_file_name_that_is_not_utf8_is_skipped_and_harms_nothing(tmp_path: Path) -> None:
    _tree(tmp_path, "plugins/profile/s/h.xplane.pb")
    (tmp_path / "plugins/profile/s" / os.fsdecode(b"\xff.xplane.pb")).touch()
    snapshot = await _listed(_root(tmp_path))
    assert _hosts(snapshot.find("s")) == ["h"]
    assert snapshot.roots[0].skipped_counts == {"XPlane files whose name is not UTF-8": 1}
    assert snapshot.roots[0].skipped[0].uri.encode("utf-8").endswith(b"\\udcff.xplane.pb")


async def test_what_the_store_skipped_is_counted_with_bounded_examples() -> None:
    store = FakeStore("gs://b/p/plugins/profile/s/h.xplane.pb")
    store.entries += [Skipped(f"gs://b/p/{number}", "folders that cannot be read") for number in range(500)]
    store.entries += [Skipped(f"gs://b/p/odd{number}", f"reason {number}") for number in range(500)]
    async with _running(BUCKET, store) as catalog:
        state = (await catalog.ready()).roots[0]
    assert (state.status, state.objects, state.requests) == ("ok", 1, 2)
    assert state.skipped_counts["folders that cannot be read"] == 500
    assert sum(state.skipped_counts.values()) == 1000
    assert len(state.skipped_counts) <= 41
    assert len(state.skipped) < 100


async def test_a_session_is_complete_when_its_files_rest() -> None:
    store = FakeStore("gs://b/p/plugins/profile/s/h.xplane.pb")
    store.entries.append(_file("gs://b/p/plugins/profile/s/late.xplane.pb", modified=time.time() - 1))
    async with _running(BUCKET, store, settle=5.0) as catalog:
        session = (await catalog.ready()).find("s")
        assert session is not None
        assert (session.complete, session.modified) == (False, store.entries[1].modified)  # type: ignore[union-attr]
        store.entries[1] = _file("gs://b/p/plugins/profile/s/late.xplane.pb", modified=time.time() - 6)
        await catalog.refresh()
        session = catalog.snapshot().find("s")
        assert session is not None
        assert session.complete is True


async def test_new_sessions_appear_and_vanished_ones_go_without_a_restart(tmp_path: Path) -> None:
    _tree(tmp_path, "plugins/profile/s1/h.xplane.pb")
    async with _running([_root(tmp_path)], local_interval=0.02) as catalog:
        assert _names(await catalog.ready()) == ["s1"]
        _tree(tmp_path, "run/plugins/profile/s2/h.xplane.pb")
        await _until(lambda: _names(catalog.snapshot()) == ["s1", "run/s2"])
        (tmp_path / "plugins/profile/s1/h.xplane.pb").unlink()
        await _until(lambda: _names(catalog.snapshot()) == ["run/s2"])


async def test_the_version_grows_only_when_the_content_changes() -> None:
    store = FakeStore("gs://b/p/plugins/profile/s/h.xplane.pb")
    async with _running(BUCKET, store) as catalog:
        first = await catalog.ready()
        assert first.version == 1
        for number in range(3):
            store.entries.append(_file(f"gs://b/p/checkpoint-{number}"))
            await catalog.refresh()
        same = catalog.snapshot()
        assert same.version == 1
        assert same.sessions[0] is first.sessions[0]
        assert same.roots[0].objects == 4
        assert same.roots[0].listed_at > first.roots[0].listed_at
        store.entries[0] = _file("gs://b/p/plugins/profile/s/h.xplane.pb", etag="other")
        await catalog.refresh()
        assert catalog.snapshot().version == 2
        store.error = StoreUnreachable("gs://b does not answer")
        await catalog.refresh()
        assert catalog.snapshot().version == 3
        await catalog.refresh()
        assert catalog.snapshot().version == 3


async def test_an_unreachable_root_keeps_its_last_sessions_and_is_marked() -> None:
    store = FakeStore("gs://b/p/plugins/profile/s/h.xplane.pb")
    async with _running(BUCKET, store) as catalog:
        await catalog.ready()
        store.error = StoreUnreachable("gs://b does not answer; check the network")
        await catalog.refresh()
        snapshot = catalog.snapshot()
        assert _names(snapshot) == ["s"]
        assert snapshot.roots[0].status == "unreachable"
        assert snapshot.roots[0].message == (
            "gs://b does not answer; check the network. Shown meanwhile: 1 session of the last good listing."
        )
        store.error = None
        await catalog.refresh()
        assert catalog.snapshot().roots[0].status == "ok"


@pytest.mark.parametrize(
    ("error", "status"), [(AccessDenied("no permission"), "forbidden"), (NotFound("no such bucket"), "missing")]
)
async def test_a_forbidden_or_missing_root_shows_nothing_and_says_why(error: Exception, status: str) -> None:
    store = FakeStore("gs://b/p/plugins/profile/s/h.xplane.pb")
    async with _running(BUCKET, store) as catalog:
        await catalog.ready()
        store.error = error
        await catalog.refresh()
        snapshot = catalog.snapshot()
    assert snapshot.sessions == ()
    assert (snapshot.roots[0].status, snapshot.roots[0].message) == (status, str(error))


async def test_a_local_folder_that_appears_later_is_picked_up_at_the_usual_pace(tmp_path: Path) -> None:
    async with _running([_root(tmp_path / "later")], local_interval=0.02) as catalog:
        state = (await catalog.ready()).roots[0]
        assert state.status == "missing"
        assert str(tmp_path / "later") in state.message
        _tree(tmp_path, "later/plugins/profile/s/h.xplane.pb")
        await _until(lambda: _names(catalog.snapshot()) == ["s"])


async def test_one_bad_root_does_not_hide_the_others_and_counts_as_ready() -> None:
    roots = [LogRoot("bad", "gs://bad"), LogRoot("good", "gs://good")]
    bad, good = FakeStore(), FakeStore("gs://good/plugins/profile/s/h.xplane.pb")
    bad.error = StoreUnreachable("gs://bad does not answer")
    async with _running(roots, bad, good) as catalog:
        snapshot = await catalog.ready()
    assert _names(snapshot) == ["good/s"]
    assert [state.status for state in snapshot.roots] == ["unreachable", "ok"]


async def test_an_unforeseen_error_is_shown_and_does_not_end_discovery(caplog: pytest.LogCaptureFixture) -> None:
    store = FakeStore("gs://b/p/plugins/profile/s/h.xplane.pb")
    store.error = ZeroDivisionError("oops")
    async with _running(BUCKET, store) as catalog:
        state = (await catalog.ready()).roots[0]
        assert (state.status, "ZeroDivisionError: oops" in state.message) == ("unreachable", True)
        assert "failed unexpectedly" in caplog.text
        store.error = None
        await catalog.refresh()
        assert _names(catalog.snapshot()) == ["s"]


async def test_failures_in_a_row_back_off() -> None:
    store = FakeStore()
    store.error = StoreUnreachable("down")
    async with _running(BUCKET, store, bucket_interval=0.02, failure_limit=0.5) as catalog:
        await catalog.ready()
        await asyncio.sleep(0.4)
        # 0.04 + 0.08 + 0.16 s leave room for four passes; without backing off there would be twenty.
        assert 2 <= store.passes <= 5


async def test_nobody_looking_slows_down_and_a_look_wakes_at_once() -> None:
    store = FakeStore()
    async with _running(BUCKET, store, bucket_interval=0.05, idle_after=0.01, idle_factor=1000.0) as catalog:
        await catalog.ready()
        await asyncio.sleep(0.2)
        assert store.passes == 1
        store.entries.append(_file("gs://b/p/plugins/profile/new/h.xplane.pb"))
        started = time.monotonic()
        catalog.touch()
        await _until(lambda: _names(catalog.snapshot()) == ["new"])
        assert time.monotonic() - started < 1.0


async def test_passes_never_overlap_and_refreshes_coalesce() -> None:
    store = FakeStore()
    async with _running(BUCKET, store) as catalog:
        await catalog.ready()
        store.open_gate.clear()
        first = asyncio.create_task(catalog.refresh())
        await _until(lambda: store.passes == 2)
        # The running pass may be past the place where this appears: whoever asks from now on gets the next one.
        store.entries.append(_file("gs://b/p/plugins/profile/s/h.xplane.pb"))
        later = [asyncio.create_task(catalog.refresh()) for _ in range(50)]
        await asyncio.sleep(0.02)
        store.open_gate.set()
        await first
        await asyncio.gather(*later)
        assert _names(catalog.snapshot()) == ["s"]
        assert (store.passes, store.most_at_once) == (3, 1)


async def test_snapshot_never_waits_for_a_listing() -> None:
    store = FakeStore("gs://b/p/plugins/profile/s/h.xplane.pb")
    store.open_gate.clear()
    async with _running(BUCKET, store) as catalog:
        await asyncio.sleep(0.02)
        snapshot = catalog.snapshot()
        assert (snapshot.version, snapshot.sessions, snapshot.roots[0].status) == (0, (), "listing")
        assert snapshot.roots[0].message == "gs://b/p is being listed for the first time."


async def test_stop_ends_a_hanging_pass_and_lets_waiters_go() -> None:
    store = FakeStore()
    async with _running(BUCKET, store) as catalog:
        await catalog.ready()
        store.open_gate.clear()
        waiting = asyncio.create_task(catalog.refresh())
        await _until(lambda: store.passes == 2)
        await catalog.stop()
        await asyncio.wait_for(waiting, 1.0)
        with pytest.raises(RuntimeError, match="not running"):
            await catalog.refresh()
        await catalog.start()
        store.open_gate.set()
        await catalog.refresh()


async def test_refresh_of_one_root_leaves_the_others_alone_and_of_an_unknown_one_is_not_found() -> None:
    roots = [LogRoot("a", "gs://a"), LogRoot("b", "gs://b")]
    first, second = FakeStore(), FakeStore()
    async with _running(roots, first, second) as catalog:
        await catalog.ready()
        await catalog.refresh("b")
        assert (first.passes, second.passes) == (1, 2)
        with pytest.raises(NotFound, match=r"'c'; there are: a, b"):
            await catalog.refresh("c")


async def test_no_roots_are_ready_at_once() -> None:
    async with _running([]) as catalog:
        assert (await catalog.ready()).sessions == ()
        await catalog.refresh()


async def test_state_changes_are_logged_once_with_what_was_skipped(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="loaders.root_watch")
    store = FakeStore("gs://b/p/bare/h.xplane.pb", "gs://b/p/notes.txt")
    async with _running(BUCKET, store) as catalog:
        await catalog.ready()
        await catalog.refresh()
        assert len(caplog.records) == 1
        record = caplog.records[0]
        text = record.getMessage()
        assert "log root b is empty" in text
        assert "among 2 objects below gs://b/p" in text
        assert "skipped gs://b/p/bare: not a …/plugins/profile/<session> folder" in text
        assert record.__dict__["skipped"] == {"other files": 1, LOOSE: 1}
        store.entries.append(_file("gs://b/p/plugins/profile/s1/h.xplane.pb"))
        await catalog.refresh()
        store.entries.append(_file("gs://b/p/plugins/profile/s2/h.xplane.pb"))
        await catalog.refresh()
        store.error = StoreUnreachable("gs://b does not answer")
        await catalog.refresh()
        await catalog.refresh()
    messages = [record.getMessage().partition("\n")[0] for record in caplog.records[1:]]
    assert [record.levelname for record in caplog.records[1:]] == ["INFO", "INFO", "WARNING"]
    assert messages[0].startswith("log root b is ok: 1 session among 3 objects below gs://b/p.")
    assert messages[1] == "log root b: new sessions: s2; gone: none"
    assert messages[2].startswith("log root b is unreachable: gs://b does not answer")


async def test_a_snapshot_travels_by_pickle_without_its_index(tmp_path: Path) -> None:
    _tree(tmp_path, *NESTED, "bare/h.xplane.pb")
    snapshot = await _listed(_root(tmp_path))
    assert snapshot.find("train/2024_01_02") is not None
    data = pickle.dumps(snapshot)
    arrived = pickle.loads(data)
    assert arrived == snapshot
    assert pickle.dumps(arrived) == data
    assert arrived.find("train/2024_01_02") == snapshot.find("train/2024_01_02")
    assert arrived.by_uri(f"{tmp_path}/bare").name == "bare"


async def test_a_root_of_100_000_objects_is_listed_without_blocking_the_loop_or_keeping_them() -> None:
    uris = [f"gs://b/p/checkpoints/step-{number}/shard.data" for number in range(90_000)]
    uris += [f"gs://b/p/r{run}/plugins/profile/s/h{host}.xplane.pb" for run in range(1000) for host in range(10)]
    store = FakeStore(*uris)
    longest = 0.0

    async def watch_the_loop() -> None:
        nonlocal longest
        while True:
            started = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - started)

    watcher = asyncio.create_task(watch_the_loop())
    tracemalloc.start()
    try:
        async with _running(BUCKET, store) as catalog:
            snapshot = await catalog.ready()
            kept = tracemalloc.get_traced_memory()[0]
            await catalog.refresh()
            assert catalog.snapshot().sessions[0] is snapshot.sessions[0]
    finally:
        tracemalloc.stop()
        watcher.cancel()
    assert len(snapshot.sessions) == 1000
    assert snapshot.roots[0].requests == 100
    assert kept < 12_000_000
    # The test runs beside others; what it guards against is the second or more that one step for all would take.
    assert longest < 0.4


async def test_the_states_and_settings_are_plain_data() -> None:
    store = FakeStore()
    async with _running(BUCKET, store) as catalog:
        state = (await catalog.ready()).roots[0]
    assert isinstance(state, RootState)
    assert type(state.skipped_counts) is dict
    assert state.took >= 0
    assert time.time() - 60 < state.listed_at <= time.time()
    assert state.message == (
        "No session was found: there is nothing below gs://b/p."
        " Sessions are expected at …/plugins/profile/<session>/<host>.xplane.pb."
    )
