"""The parts by which work is shared and sent to its owner."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from hosting import metrics
from hosting.affinity_router import rank_slots
from loaders.engines.left_out import mention_left_out
from loaders.errors import DeadlineExceeded, ProfileError
from loaders.single_flight import SingleFlight


async def test_work_of_one_key_runs_once_for_all_who_ask() -> None:
    flight: SingleFlight[int] = SingleFlight()
    started = 0

    async def work() -> int:
        nonlocal started
        started += 1
        await asyncio.sleep(0.02)
        return 7

    assert await asyncio.gather(*(flight.do("key", work) for _ in range(5))) == [7] * 5
    assert started == 1
    assert await flight.do("key", work) == 7
    assert started == 2
    assert len(flight) == 0


async def test_an_error_reaches_all_who_ask_and_is_not_kept() -> None:
    flight: SingleFlight[int] = SingleFlight()

    async def fail() -> int:
        await asyncio.sleep(0)
        raise DeadlineExceeded("too slow")

    results = await asyncio.gather(*(flight.do("key", fail) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [DeadlineExceeded] * 3

    async def succeed() -> int:
        return 1

    assert await flight.do("key", succeed) == 1


async def test_a_caller_that_leaves_does_not_take_the_work_with_it() -> None:
    flight: SingleFlight[int] = SingleFlight()
    release = asyncio.Event()

    async def work() -> int:
        await release.wait()
        return 3

    impatient = asyncio.ensure_future(flight.do("key", work))
    patient = asyncio.ensure_future(flight.do("key", work))
    await asyncio.sleep(0)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    release.set()
    assert await patient == 3


def test_a_new_slot_takes_only_its_share_and_moves_nothing_else() -> None:
    keys = [f"run/session-{i}/host-{i % 7}" for i in range(2000)]
    slots = [str(i) for i in range(4)]
    before = {key: rank_slots(key, slots)[0] for key in keys}
    after = {key: rank_slots(key, [*slots, "4"])[0] for key in keys}
    moved = {key for key in keys if before[key] != after[key]}
    assert all(after[key] == "4" for key in moved)
    assert 300 < len(moved) < 500
    assert all(400 < count < 600 for count in Counter(before.values()).values())


def test_errors_cross_processes_with_their_kind_and_words() -> None:
    import pickle

    for kind in ProfileError.__subclasses__():
        error = pickle.loads(pickle.dumps(kind("words for people")))
        assert type(error) is kind
        assert str(error) == "words for people"
        assert error.status >= 400


def test_metrics_of_replicas_are_told_apart_by_a_label() -> None:
    text = '# HELP x_total things\n# TYPE x_total counter\nx_total{tool="a"} 2.0\n'
    merged = metrics.merge({"shard-1": text, "shard-2": text}).decode()
    assert 'x_total{replica="shard-1",tool="a"} 2.0' in merged
    assert 'x_total{replica="shard-2",tool="a"} 2.0' in merged
    assert merged.count("# TYPE") == 1


def test_a_host_left_out_is_mentioned_where_the_ui_shows_diagnostics() -> None:
    page = b'[{"cols":[{"id":"a"}],"rows":[]},{"cols":[{"id":"severity"},{"id":"message"}],"rows":[]}]'
    said = mention_left_out("overview_page", page, {"host-1": "it is empty"}).decode()
    assert "Host host-1 is left out of this page: it is empty" in said
    pod = mention_left_out("pod_viewer", b'{"diagnostics":{"warnings":["w"]}}', {"host-1": "r"}).decode()
    assert '"w","Host host-1' in pod
    assert mention_left_out("op_profile", b"{}", {"host-1": "r"}) == b"{}"
    assert mention_left_out("overview_page", page, {}) == page
