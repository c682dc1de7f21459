"""The windows of a trace that the UI asks for while somebody zooms and pans."""

from __future__ import annotations

import re

# The UI asks for three times what it shows.
FETCH = 3
_TIMES = re.compile(rb'"ts": ?([0-9.eE+]+)')

# Where the middle of the screen is and how much of the trace it shows, both as parts of the whole.
_SEEN = ((0.4, 1 / 4), (0.4, 1 / 16), (0.4, 1 / 64), (0.41, 1 / 64), (0.42, 1 / 64), (0.4, 1 / 512), (0.8, 1 / 32))


def time_range(trace: bytes) -> tuple[float, float]:
    """The first and last time in a trace's JSON, in ms.

    Raises:
        ValueError: there is no event in it.
    """
    times = [float(found[1]) for found in _TIMES.finditer(trace)]
    if not times:
        raise ValueError("the trace has no events")
    return min(times) / 1000, max(times) / 1000


def zoom_parameters(begin: float, end: float) -> list[dict[str, str]]:
    """What is asked for one window after the other, in a trace from `begin` to `end` (ms)."""
    asked = []
    for middle, shown in _SEEN:
        center = begin + middle * (end - begin)
        half = shown * (end - begin) * FETCH / 2
        asked.append(
            {
                "start_time_ms": repr(max(begin, center - half)),
                "end_time_ms": repr(min(end, center + half)),
                "replace_model": "false",
                "mpmd_pipeline_view": "false",
                "full_dma": "false",
            }
        )
    return asked
