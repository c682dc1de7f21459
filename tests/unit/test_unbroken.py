from __future__ import annotations

import asyncio
import threading
import time

import pytest

from loaders.unbroken import in_thread


async def test_a_cancellation_waits_for_the_thread_and_then_counts() -> None:
    started, ended = threading.Event(), threading.Event()

    def work() -> str:
        started.set()
        time.sleep(0.2)
        ended.set()
        return "lost"

    task = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(started.wait)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_results_and_errors_come_through() -> None:
    assert await in_thread(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


async def test_an_error_after_a_cancellation_gives_way_to_it() -> None:
    started = threading.Event()

    def fail() -> None:
        started.set()
        time.sleep(0.05)
        raise OSError("nobody waits for this")

    task = asyncio.create_task(in_thread(fail))
    await asyncio.to_thread(started.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
