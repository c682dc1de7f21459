"""A trace's JSON, thinned to a size."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loaders.engines.trace_thinning import take_apart, thin

# As xprof 2.24.2 writes it, spaces and all.
HEAD = (
    '{"displayTimeUnit":"ns","metadata":{"highres-ticks":true}, "codeLink":"","useNewBackend": false,'
    '"returnedEventsSize":%d,"filteredByVisibility":true,"fullTimespan":[0,1000],"stackFrames":{},"traceEvents":['
    '{"args":{"name":"host /device:TPU:0"},"name":"process_name","ph":"M","pid":1003,"thread_count":2}'
)
TAIL = '], "showCounterMessage": "" ,"totalCounterEvents":0}'
TRICKY = r"""say \"x\",{\"pid\":7,\"tid\":8,\"name\":\"y\",\"ts\":1,\"dur\":2} \\"""


def trace(events: list[str]) -> bytes:
    return (HEAD % len(events) + "".join(f",{event}" for event in events) + TAIL).encode()


def event(tid: int, ts: float, dur: float, name: str = "op", pid: int = 1003) -> str:
    return f'{{"pid":{pid},"tid":{tid},"name":"{name}","ts":{ts},"dur":{dur},"ph":"X","args":{{"uid":0}}}}'


def kept(data: bytes, max_bytes: int) -> list[dict[str, Any]]:
    events = thin(take_apart(data), max_bytes)
    assert len(events.data) <= max_bytes
    found: list[dict[str, Any]] = json.loads(b"[" + events.data + b"]")
    return found


def test_what_fits_is_left_as_it_is() -> None:
    data = trace([event(1, 0, 5), event(2, 1, 5)])
    taken = take_apart(data)
    assert taken.head["fullTimespan"] == [0, 1000]
    assert [item["name"] for item in taken.head["traceEvents"]] == ["process_name"]
    events = thin(taken, 10_000)
    assert (events.hidden, json.loads(b"[" + events.data + b"]")[1]["tid"]) == (0, 2)


def test_a_trace_without_events_has_none() -> None:
    taken = take_apart(trace([]))
    assert (taken.size, thin(taken, 0).data) == (0, b"")


def test_the_longest_events_stay_and_every_row_keeps_some_all_along() -> None:
    events = [event(tid, ts, 1 + (ts % 10 == 0) * 8) for tid in (1, 2, 3) for ts in range(1000)]
    events += [event(4, ts, 0.001) for ts in range(1000)]
    data = trace(events)
    taken = take_apart(data)
    thinned = thin(taken, taken.size // 4)
    found = json.loads(b"[" + thinned.data + b"]")
    assert thinned.total == 4000
    assert thinned.hidden == 4000 - len(found)
    assert taken.size // 5 < len(thinned.data) <= taken.size // 4
    for tid in (1, 2, 3, 4):
        times = [item["ts"] for item in found if item["tid"] == tid]
        assert len(times) > 50
        assert times == sorted(times)
        # No eighth of the time is empty.
        assert {int(ts / 125) for ts in times} == set(range(8))
    long = {(item["tid"], item["ts"]) for item in found if item["dur"] == 9}
    assert len(long) == 300


def test_text_that_looks_like_an_event_is_none() -> None:
    data = trace([event(1, ts, 1, TRICKY) for ts in range(100)])
    found = kept(data, 5_000)
    assert 10 < len(found) < 100
    assert all(item["name"].endswith(" \\") and item["pid"] == 1003 for item in found)


def test_arguments_named_as_an_events_fields_begin_no_event() -> None:
    odd = '{"pid":1003,"tid":1,"name":"op","ts":%d,"dur":1,"ph":"X","args":{"pid":5,"tid":6,"name":"z","ts":1,"dur":9}}'
    found = kept(trace([odd % ts for ts in range(100)]), 5_000)
    assert all(item["args"]["pid"] == 5 and item["dur"] == 1 for item in found)


def test_both_ends_of_an_asynchronous_event_stay_or_go() -> None:
    ends = [
        f'{{"pid":1003,"name":"copy","ts":{ts + later},"id":{ts},"cat":"x","ph":"{phase}"}}'
        for ts in range(100)
        for phase, later in (("b", 0), ("e", 50 if ts == 40 else 1))
    ]
    found = kept(trace([event(1, 0, 500), *ends]), 3_000)
    begun = {item["id"] for item in found if item["ph"] == "b"}
    assert begun == {item["id"] for item in found if item["ph"] == "e"}
    assert 40 in begun
    assert 5 < len(begun) < 100


def test_counters_keep_entries_all_along() -> None:
    entries = ",".join(f"[{ts},{ts * 2}]" for ts in range(2_000))
    counter = f'{{"pid":1003,"name":"HBM","ph":"C","event_stats":"bytes","entries":[{entries}]}}'
    data = trace([event(1, 0, 1000), counter, *(event(1, ts, 1) for ts in range(500))])
    taken = take_apart(data)
    thinned = thin(taken, 20_000)
    found = json.loads(b"[" + thinned.data + b"]")
    [left] = [item for item in found if item["ph"] == "C"]
    assert left["entries"][0] == [0, 0]
    assert left["entries"][-1][0] > 1_900
    assert all(value == 2 * ts for ts, value in left["entries"])
    assert thinned.total == 2_501
    assert thinned.hidden == 2_501 - len(left["entries"]) - (len(found) - 1)


def test_what_is_no_trace_is_refused() -> None:
    with pytest.raises(ValueError, match="subsection"):
        take_apart(b'{"error": 1}')
