"""Memory of a server with all its processes, sampled while it works."""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType
from typing import Self

import psutil

INTERVAL = 0.2  # seconds
LEAST_AVAILABLE = 1 << 30  # bytes left on the machine below which the server is stopped


def tree_pss(pid: int) -> int:
    """Proportional set size in bytes of a process and everything below it: pages shared among them count once."""
    total = 0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
    return total


class FullMachineGuard:
    """A context manager that kills the server when the machine is about to run out of memory.

    So measuring a greedy server does not take the machine down. `exhausted` tells that it happened.
    """

    def __init__(self, pid: int) -> None:
        self.exhausted = False
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self._sample()
            if psutil.virtual_memory().available < LEAST_AVAILABLE:
                self.exhausted = True
                with contextlib.suppress(psutil.Error):
                    psutil.Process(self._pid).kill()
                return
            if self._stop.wait(INTERVAL):
                return

    def _sample(self) -> None:
        """What else is looked at each time."""


class PeakMemory(FullMachineGuard):
    """A guard that also keeps the largest `tree_pss` seen, in bytes, as `peak`."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.peak = 0

    def _sample(self) -> None:
        self.peak = max(self.peak, tree_pss(self._pid))
