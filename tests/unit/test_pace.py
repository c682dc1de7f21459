"""Log roots are listed often while somebody looks, and ever more seldom while nobody does or listing fails."""

from __future__ import annotations

import pytest

from loaders.pace import Pace


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _waits(pace: Pace, clock: Clock, passes: int, *, failed: bool = False, looking: bool = False) -> list[float]:
    waits = []
    for _ in range(passes):
        pace.passed(0.01, failed=failed)
        start = clock.now
        while (remaining := pace.remaining()) > 0:
            clock.now += remaining
            if looking:
                pace.looked()
        waits.append(clock.now - start)
    return waits


def test_while_somebody_looks_passes_follow_by_the_interval(clock: Clock) -> None:
    assert _waits(Pace(4.0, clock=clock), clock, 200, looking=True) == pytest.approx([4.0] * 200)


def test_while_nobody_looks_passes_get_rarer_up_to_a_limit(clock: Clock) -> None:
    pace = Pace(4.0, idle_after=20.0, idle_limit=600.0, clock=clock)
    assert _waits(pace, clock, 10) == pytest.approx([4.0] * 5 + [16.0, 64.0, 256.0, 600.0, 600.0])


def test_a_look_ends_the_idle_pace_at_once(clock: Clock) -> None:
    pace = Pace(4.0, idle_after=20.0, clock=clock)
    _waits(pace, clock, 8)
    pace.passed(0.01, failed=False)
    clock.now += 30
    assert pace.remaining() > 100
    assert pace.looked() is True
    assert pace.remaining() < 0
    assert pace.looked() is False


def test_failures_double_the_wait_up_to_five_minutes_and_success_resets_it(clock: Clock) -> None:
    pace = Pace(30.0, clock=clock)
    assert _waits(pace, clock, 5, failed=True, looking=True) == pytest.approx([60.0, 120.0, 240.0, 300.0, 300.0])
    assert _waits(pace, clock, 2, looking=True) == pytest.approx([30.0, 30.0])


def test_looking_does_not_hammer_a_store_that_is_down(clock: Clock) -> None:
    pace = Pace(30.0, clock=clock)
    for _ in range(50):
        pace.passed(0.01, failed=True)
    pace.looked()
    assert pace.remaining() == pytest.approx(300.0)


def test_a_slow_store_is_listed_at_most_half_of_the_time(clock: Clock) -> None:
    pace = Pace(4.0, clock=clock)
    pace.passed(70.0, failed=False)
    assert pace.remaining() == pytest.approx(70.0)
    pace.passed(1000.0, failed=True)
    assert pace.remaining() == pytest.approx(1000.0)
