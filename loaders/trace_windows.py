"""The trace viewer's window and resolution in few steps, so that viewers who look at nearly the same share one result.

The viewer asks for three times what is on its screen, at four events per pixel: two screens never ask for quite the
same. What is answered instead covers what was asked, at no fewer events per millisecond. The viewer drops events that
it has already and keeps to the window that it asked for, so the events around it do no harm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

RESOLUTIONS: Final = tuple(
    digits * 10**power for power in range(4) for digits in (100, 125, 160, 200, 250, 320, 400, 500, 640, 800)
)
"""Events per row that results are made for, a quarter apart, from 100 to 800,000."""

_MOST_STEPS: Final = 32
# 2**-20 ms is about a nanosecond, less than the viewer can zoom to.
_SMALLEST_STEP: Final = -20
_LATEST: Final = 2.0**50  # ms, beyond any trace
_PS_PER_MS: Final = 1e9


def widened(start: float, end: float) -> tuple[float, float]:
    """The window on the grid that covers a window; all in ms.

    The grid's step is the smallest power of two that leaves at most 32 steps, so the result is less than 1.13 times as
    long (windows of a few nanoseconds aside), and widening it again changes nothing. What is no window, or beyond any
    trace, comes back as it is.
    """
    start = max(start, 0.0)
    if not start < end <= _LATEST:
        return start, end
    power = max(math.frexp((end - start) / _MOST_STEPS)[1] - 1, _SMALLEST_STEP)
    while True:
        step = math.ldexp(1.0, power)
        first, last = math.floor(start / step), math.ceil(end / step)
        if last - first <= _MOST_STEPS:
            return first * step, last * step
        power += 1


def shared_resolution(asked: float, growth: float = 1.0) -> float:
    """The step of `RESOLUTIONS` that shows as much of a window as `asked` does, once it has grown by that factor.

    0 means everything and stays; so does what is beyond the steps.
    """
    if asked <= 0:
        return 0
    # Less a rounding error, so that a step stays where it is.
    wanted = asked * growth * (1 - 1e-9)
    return next((step for step in RESOLUTIONS if step >= wanted), asked)


def exact_time(asked: float) -> float:
    """A time in ms as xprof has to be given it to find the event that has it.

    XProf cuts off what is less than a picosecond, so that a time which floating point puts a hair below its picosecond
    finds nothing: a quarter of the events of a long TPU trace had no details. Beyond 75 minutes into a trace, numbers
    have no room for this, and some still have none.
    """
    return (round(asked * _PS_PER_MS) + 0.25) / _PS_PER_MS


def exact_length(asked: float) -> float:
    """An event's length in ms, likewise. XProf shows events of no length as one picosecond long."""
    return exact_time(asked if round(asked * _PS_PER_MS) > 1 else 0.0)


def shared_window(numbers: Mapping[str, float]) -> dict[str, float]:
    """`resolution`, `start_time_ms` and `end_time_ms`, as far as they are given, in the steps of this module."""
    shared = dict(numbers)
    growth = 1.0
    if "start_time_ms" in numbers and "end_time_ms" in numbers:
        start, end = max(numbers["start_time_ms"], 0.0), numbers["end_time_ms"]
        shared["start_time_ms"], shared["end_time_ms"] = widened(start, end)
        if start < end:
            growth = (shared["end_time_ms"] - shared["start_time_ms"]) / (end - start)
    if "resolution" in numbers:
        shared["resolution"] = shared_resolution(numbers["resolution"], growth)
    return shared
