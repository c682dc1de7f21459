"""Whole on one shard or split by host, and which shards a call may go to."""

from __future__ import annotations

import pytest

from hosting.affinity_router import Owners, rank_slots
from hosting.hot_sessions import HotSessions
from hosting.planner import plan_session, splits
from loaders.jobs import host_affinity, inspection_job, plan_job
from loaders.sessions import HostFile, Session
from loaders.stored_file import StoredFile
from loaders.tools import TOOLS

MIB = 1 << 20


def session(sizes: list[int], name: str = "run/s") -> Session:
    """A session with a host of each size in bytes."""
    hosts = tuple(
        HostFile(f"host-{i}", StoredFile(f"gs://b/host-{i}.xplane.pb", size, 0.0, "etag", "1"))
        for i, size in enumerate(sizes)
    )
    return Session(name, "root", f"gs://b/{name}", hosts, 0.0, True)


def test_a_session_within_the_budget_is_opened_whole_on_the_shard_that_owns_it() -> None:
    plan = plan_session(session([30 * MIB, 30 * MIB]), 64 * MIB, 8)
    assert not plan.split
    assert "fit" in plan.reason
    assert "60.0 MiB" in plan.reason
    assert {host.shard for host in plan.hosts} == {plan.shard}
    assert plan.bytes == 60 * MIB


def test_a_session_over_the_budget_is_split_and_each_host_has_its_own_owner() -> None:
    found = session([40 * MIB] * 16)
    plan = plan_session(found, 128 * MIB, 8)
    assert plan.split
    assert "exceed" in plan.reason
    assert "--shard-budget-mib" in plan.reason
    slots = [str(n) for n in range(8)]
    assert [host.shard for host in plan.hosts] == [
        rank_slots(host_affinity(found.name, item.host), slots)[0] for item in found.hosts
    ]
    assert len({host.shard for host in plan.hosts}) > 4
    assert all(host.predicted_peak_bytes > 20 * host.bytes for host in plan.hosts)


def test_one_host_is_never_split_however_large() -> None:
    assert not splits(session([1900 * MIB]), 128 * MIB)
    assert "nothing to split" in plan_session(session([1900 * MIB]), 128 * MIB, 2).reason


@pytest.mark.parametrize("split", [True, False])
def test_a_jobs_affinity_follows_the_plan(split: bool) -> None:
    found = session([MIB, MIB])
    one = plan_job(found, TOOLS["trace_viewer@"], (), "host-1", None, split=split)
    every = plan_job(found, TOOLS["overview_page"], (), None, None, split=split)
    assert one.affinity == (host_affinity("run/s", "host-1") if split else "run/s")
    assert every.affinity == inspection_job(found, split=split).affinity == "run/s"
    assert one.key("e") == plan_job(found, TOOLS["trace_viewer@"], (), "host-1", None, split=not split).key("e")


def test_a_calls_owners_travel_as_its_session_id() -> None:
    owners = Owners("run/with:colon/host", 1, 3)
    assert Owners.decode(owners.encode()) == owners


def test_the_owners_come_first_together_and_the_others_in_order() -> None:
    slots = [str(n) for n in range(5)]
    ranked = rank_slots("key", slots)
    assert Owners("key").ranks(slots) == [[slot] for slot in ranked]
    assert Owners("key", 1, 2).ranks(slots) == [ranked[1:3], [ranked[3]], [ranked[4]], [ranked[0]]]
    assert Owners("key", 1, 2).ranks(["0"]) == [["0"]]


def test_a_new_replica_takes_its_share_and_moves_nothing_else() -> None:
    keys = [f"session-{n}" for n in range(2000)]
    before = {key: rank_slots(key, [str(n) for n in range(4)])[0] for key in keys}
    after = {key: rank_slots(key, [str(n) for n in range(5)])[0] for key in keys}
    moved = [key for key in keys if before[key] != after[key]]
    assert {after[key] for key in moved} == {"4"}
    assert 300 < len(moved) < 500


def test_a_session_gains_owners_with_its_load_and_loses_them_again() -> None:
    hot = HotSessions(processes=2)
    assert hot.owners("s") == 1
    running = [hot.making("s") for _ in range(9)]
    owners = []
    for making in running:
        making.__enter__()
        owners.append(hot.owners("s"))
    assert owners == [1, 1, 1, 1, 2, 2, 2, 2, 3]
    assert hot.owners("another") == 1
    for making in running:
        making.__exit__(None, None, None)
    assert hot.owners("s") == 1
