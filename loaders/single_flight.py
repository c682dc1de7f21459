"""One piece of work for all who ask for the same thing at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Shares running work by key within one event loop.

    A caller that is cancelled leaves the work running for the others, and for the cache that its end fills.
    """

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[T]] = {}

    def __len__(self) -> int:
        return len(self._running)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._running

    async def do(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Awaits the work that runs under `key`, starting it when none does; its error reaches every caller."""
        task = self._running.get(key)
        if task is None:
            task = asyncio.ensure_future(_run(work))
            self._running[key] = task
            task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(task)

    def _forget(self, key: Hashable, task: asyncio.Task[T]) -> None:
        if self._running.get(key) is task:
            del self._running[key]
        if not task.cancelled():
            # Seen here so that asyncio does not report an error whose callers have all gone.
            task.exception()


async def _run(work: Callable[[], Awaitable[T]]) -> T:
    return await work()
