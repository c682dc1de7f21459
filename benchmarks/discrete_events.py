"""A simulation of discrete events: a clock, and servers before which work waits in the order in which it came."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count

Done = Callable[[], None]


class Simulation:
    """A clock in seconds, and what happens when. Nothing takes time but what is told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self._coming: list[tuple[float, int, Done]] = []
        # What is due at the same time happens in the order in which it was planned.
        self._numbers = count()

    def after(self, seconds: float, what: Done) -> None:
        """Lets something happen in so many seconds."""
        heapq.heappush(self._coming, (self.now + seconds, next(self._numbers), what))

    def run(self) -> None:
        """Runs until nothing is left to happen."""
        while self._coming:
            self.now, _, what = heapq.heappop(self._coming)
            what()


class Station:
    """Something that does so many pieces of work at once, first come, first served: processes, a network link."""

    def __init__(self, simulation: Simulation, places: int = 1) -> None:
        self.busy_seconds = 0.0
        self._simulation = simulation
        self._free = places
        self._waiting: deque[tuple[float, Done]] = deque()

    def do(self, seconds: float, done: Done) -> None:
        """Takes a piece of work that lasts so long; `done` is called at its end."""
        self._waiting.append((seconds, done))
        self._begin()

    def _begin(self) -> None:
        while self._free and self._waiting:
            seconds, done = self._waiting.popleft()
            self._free -= 1
            self.busy_seconds += seconds
            self._simulation.after(seconds, lambda done=done: self._end(done))  # type: ignore[misc]

    def _end(self, done: Done) -> None:
        self._free += 1
        self._begin()
        done()
