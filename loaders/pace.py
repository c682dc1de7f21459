"""When a log root is listed again: often while somebody looks, seldom otherwise, ever more seldom while it fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Pace:
    """Decides when the next pass over one log root is due. All times are seconds, on `clock`.

    A pass follows the last one by `interval`, or by as long as the last one took if that is more, so that a slow store
    is busy with us at most half of the time. After `idle_after` without `looked()` every further pass waits
    `idle_factor` times longer than the one before, up to `idle_limit`. Every failure in a row doubles the wait, up to
    `failure_limit`; looking does not shorten that.
    """

    interval: float
    idle_after: float = 300.0
    idle_factor: float = 4.0
    idle_limit: float = 600.0
    failure_limit: float = 300.0
    clock: Callable[[], float] = time.monotonic
    _looked_at: float = field(init=False)
    _passed_at: float = field(init=False)
    _took: float = field(init=False, default=0.0)
    _failures: int = field(init=False, default=0)
    _idle_passes: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._looked_at = self._passed_at = self.clock()

    def looked(self) -> bool:
        """Note that somebody looks. True when that may bring the next pass forward."""
        was_idle = self._idle()
        self._looked_at = self.clock()
        self._idle_passes = 0
        return was_idle

    def passed(self, took: float, *, failed: bool) -> None:
        """Note that a pass has just ended."""
        self._passed_at = self.clock()
        self._took = took
        self._failures = self._failures + 1 if failed else 0
        if self._idle():
            self._idle_passes += 1

    def remaining(self) -> float:
        """Seconds until the next pass is due; 0 or less when it is."""
        wait = max(self.interval, self._took)
        if self._failures:
            wait = max(wait, min(wait * 2.0 ** min(self._failures, 32), self.failure_limit))
        if self._idle():
            wait = max(wait, min(wait * self.idle_factor ** min(self._idle_passes + 1, 16), self.idle_limit))
        return self._passed_at + wait - self.clock()

    def _idle(self) -> bool:
        return self.clock() - self._looked_at > self.idle_after
