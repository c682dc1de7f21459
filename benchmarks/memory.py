"""Memory of a server with all its processes, sampled while it works."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import psutil

INTERVAL = 0.2  # seconds
LEAST_AVAILABLE = 1 << 30  # bytes left on the machine below which the server is stopped


def process_tree(pids: Sequence[int]) -> list[psutil.Process]:
    """The processes and everything below them; those that have gone are left out."""
    found: dict[int, psutil.Process] = {}
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(pid)
            found |= {process.pid: process for process in [root, *root.children(recursive=True)]}
    return list(found.values())


def tree_pss(pids: Sequence[int]) -> tuple[int, int]:
    """Proportional set sizes in bytes of the processes and everything below them: their sum, and the largest.

    Pages that processes share count once in the sum.
    """
    total = largest = 0
    for process in process_tree(pids):
        with contextlib.suppress(psutil.Error):
            size = process.memory_full_info().pss
            total, largest = total + size, max(largest, size)
    return total, largest


def kill_tree(pids: Sequence[int]) -> None:
    """Kills the processes and everything below them."""
    for process in process_tree(pids):
        with contextlib.suppress(psutil.Error):
            process.kill()


class FullMachineGuard:
    """A context manager that kills the server when the machine is about to run out of memory.

    So measuring a greedy server does not take the machine down. `exhausted` tells that it happened.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self.exhausted = False
        self._pids = pids
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
                kill_tree(self._pids)
                return
            if self._stop.wait(INTERVAL):
                return

    def _sample(self) -> None:
        """What else is looked at each time."""


class PeakMemory(FullMachineGuard):
    """A guard that also keeps the largest sum (`peak`) and the largest single process (`largest`) seen, in bytes."""

    def __init__(self, pids: Sequence[int]) -> None:
        super().__init__(pids)
        self.peak = 0
        self.largest = 0

    def _sample(self) -> None:
        total, largest = tree_pss(self._pids)
        self.peak, self.largest = max(self.peak, total), max(self.largest, largest)
