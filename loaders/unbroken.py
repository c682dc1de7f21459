"""Blocking work that must not be left half done when the task that waits for it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T], executor: Executor | None = None) -> T:
    """Runs `work` in a thread. When the caller is cancelled, the cancellation waits until the thread is done.

    So whatever `work` uses (an open file, a lock) can be closed by the caller's `finally` without pulling it away from
    under a running thread.
    """
    running = asyncio.get_running_loop().run_in_executor(executor, work)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        # Looked at, so that asyncio does not report an error that nobody waits for any more.
        running.exception()
        raise cancelled
    return running.result()
