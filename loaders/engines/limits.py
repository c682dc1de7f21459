"""Limits that an engine's process sets on itself."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

EXIT_OUT_OF_MEMORY: Final = 86
"""The exit status of a process that stopped itself because it went over its memory limit."""

_PR_SET_PDEATHSIG: Final = 1
_POLL_SECONDS: Final = 0.02
# What an engine's process may see of our environment: no credentials, no proxies.
_KEPT_VARIABLES: Final = frozenset(
    {"PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "OPENBLAS_CORETYPE"}
)


def enter_child() -> None:
    """Prepares a fresh engine process: it dies with its parent, is the kernel's first choice when memory runs out,
    and has neither credentials nor proxies in its environment."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for name in list(os.environ):
        if name not in _KEPT_VARIABLES and not name.startswith(("LC_", "PYTHON")):
            del os.environ[name]
    # Not every container allows it, and the memory limit holds without.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


@contextmanager
def memory_limit(max_bytes: int) -> Iterator[None]:
    """Ends this process with `EXIT_OUT_OF_MEMORY` when its resident size goes over `max_bytes` while the block runs.

    A watching thread rather than `RLIMIT_AS`, because an allocator's reservations say little of what is used. It reads
    the size every 20 ms; native code runs without the interpreter's lock, so it is not held up.
    """
    done = threading.Event()
    page = os.sysconf("SC_PAGE_SIZE")

    def watch() -> None:
        with open("/proc/self/statm", "rb", buffering=0) as statm:
            while not done.wait(_POLL_SECONDS):
                statm.seek(0)
                if int(statm.read().split()[1]) * page > max_bytes:
                    os._exit(EXIT_OUT_OF_MEMORY)

    thread = threading.Thread(target=watch, name="memory-limit", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
