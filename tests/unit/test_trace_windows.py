"""Windows and resolutions of the trace viewer in shared steps."""

from __future__ import annotations

import math
import random

from loaders.tools import TOOLS, canonical_parameters
from loaders.trace_windows import RESOLUTIONS, exact_length, exact_time, shared_resolution, shared_window, widened

TRACE = TOOLS["trace_viewer@"]


def _windows(count: int) -> list[tuple[float, float]]:
    """Windows of 100 ns to 3 hours, anywhere in a trace of 3 hours."""
    draw = random.Random(3)
    windows = []
    for _ in range(count):
        length = 10 ** draw.uniform(-4, 7)
        start = draw.uniform(0, 1e7 - length)
        windows.append((start, start + length))
    return windows


def test_the_answered_window_covers_the_asked_one_and_is_at_most_an_eighth_longer() -> None:
    for start, end in _windows(5_000):
        first, last = widened(start, end)
        assert first <= start
        assert last >= end
        assert first >= 0
        assert last - first < 1.13 * (end - start)


def test_widening_again_changes_nothing() -> None:
    for start, end in _windows(2_000):
        once = shared_window({"start_time_ms": start, "end_time_ms": end, "resolution": 3640})
        assert shared_window(once) == once


def test_viewers_of_nearly_the_same_place_share_few_results() -> None:
    draw = random.Random(4)
    found = set()
    for _ in range(500):
        # Browsers of 1,000 to 2,500 pixels, the same second on their screens but for 2 % of its length.
        start, end = 4_000 + draw.uniform(-20, 20), 7_000 + draw.uniform(-20, 20)
        asked = {"start_time_ms": start, "end_time_ms": end, "resolution": round(draw.uniform(1_000, 2_500) / 2) * 8}
        found.add(tuple(shared_window(asked).values()))
    assert len(found) <= 12


def test_no_event_that_was_asked_for_is_lost_to_a_wider_window() -> None:
    draw = random.Random(5)
    for start, end in _windows(2_000):
        resolution = draw.uniform(100, 40_000)
        answered = shared_window({"start_time_ms": start, "end_time_ms": end, "resolution": resolution})
        length = answered["end_time_ms"] - answered["start_time_ms"]
        assert answered["resolution"] / length >= resolution / (end - start) * (1 - 1e-6)
        assert answered["resolution"] <= resolution * 1.13 * 1.29


def test_resolutions_go_up_to_the_next_step_and_everything_stays_everything() -> None:
    assert shared_resolution(3640) == 4000
    assert shared_resolution(8000) == 8000
    assert shared_resolution(0) == 0
    assert shared_resolution(1e9) == 1e9
    assert all(shared_resolution(step) == step for step in RESOLUTIONS)


def test_what_is_no_window_stays_as_it_is() -> None:
    assert widened(5, 5) == (5, 5)
    assert widened(7, 5) == (7, 5)
    assert widened(0, 1e300) == (0, 1e300)
    assert shared_window({"start_time_ms": 3.3}) == {"start_time_ms": 3.3}
    assert shared_window({"start_time_ms": -3.0, "end_time_ms": 16.0}) == {"start_time_ms": 0.0, "end_time_ms": 16.0}


def test_an_events_own_time_stays_the_picosecond_that_it_was() -> None:
    draw = random.Random(6)
    for _ in range(5_000):
        picoseconds = draw.randrange(10 ** draw.randint(1, 15))
        # As the viewer has it: microseconds from our JSON, divided by a thousand.
        asked = float(repr(picoseconds / 1e6)) / 1000
        assert math.floor(exact_time(asked) * 1e9) == picoseconds
        assert exact_time(exact_time(asked)) == exact_time(asked)
    assert math.floor(exact_length(1e-9) * 1e9) == 0
    assert math.floor(exact_length(2e-9) * 1e9) == 2


def test_requests_are_made_in_shared_windows_and_details_exact() -> None:
    query = {"resolution": "3640", "start_time_ms": "100.3", "end_time_ms": "131.9"}
    found = dict(canonical_parameters(TRACE, query))
    assert (found["start_time_ms"], found["end_time_ms"], found["resolution"]) == ("100", "132", "4000")
    detail = {"event_name": "fusion", "start_time_ms": "100.3", "duration_ms": "0.25", "unique_id": "0"}
    assert dict(canonical_parameters(TRACE, detail))["start_time_ms"] == "100.30000000025"
    assert dict(canonical_parameters(TOOLS["trace_viewer"], query))["start_time_ms"] == "100.3"
