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


class PeakMemory:
    """A context manager that keeps the largest `tree_pss` seen, in bytes, as `peak`.

    When the machine is about to run out of memory it kills the server and sets `exhausted`, so that measuring a greedy
    server does not take the machine down.
    """

    def __init__(self, pid: int) -> None:
        self.peak = 0
        self.exhausted = False
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            self.peak = max(self.peak, tree_pss(self._pid))
            if psutil.virtual_memory().available < LEAST_AVAILABLE:
                self.exhausted = True
                with contextlib.suppress(psutil.Error):
                    psutil.Process(self._pid).kill()
                return
            if self._stop.wait(INTERVAL):
                return
