"""One piece of work for all who ask for the same thing at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from loaders.tickets import Ticket, current_ticket, ticket_here

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Shares running work by key within one event loop.

    The work runs under a ticket of its own, which all who wait for it have joined: it becomes urgent when somebody
    joins who is, and when all have gone, whoever queues it may drop it. Work under way is finished all the same, for
    the cache that its end fills, unless `cancels` says that nobody else has use for it.
    """

    def __init__(self, *, cancels: bool = False) -> None:
        """`cancels`: cancel the work when the last asker has gone."""
        self._cancels = cancels
        self._running: dict[Hashable, tuple[asyncio.Task[T], Ticket]] = {}

    def __len__(self) -> int:
        return len(self._running)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._running

    @property
    def urgent(self) -> int:
        """How many pieces of work people wait for."""
        return sum(shared.urgent for _, shared in self._running.values())

    async def do(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Awaits the work that runs under `key`, starting it when none does; its error reaches every caller.

        The caller's interest is that of the ticket in its context.
        """
        asker = ticket_here()
        while True:
            running = self._running.get(key)
            # One that was dropped may still be here for a moment.
            task, shared = running if running and not running[0].cancelled() else self._start(key, work)
            shared.join(asker)
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                if not task.cancelled() or _being_cancelled() or not asker.wanted:
                    raise
                # The work was dropped between the moment its last asker left and this one came: it starts again.
            finally:
                shared.leave(asker)
                if self._cancels and not shared.wanted:
                    task.cancel()

    def _start(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> tuple[asyncio.Task[T], Ticket]:
        shared = Ticket()
        outer = current_ticket.set(shared)
        try:
            task = asyncio.ensure_future(_run(work))
        finally:
            current_ticket.reset(outer)
        self._running[key] = task, shared
        task.add_done_callback(lambda done: self._forget(key, done))
        return task, shared

    def _forget(self, key: Hashable, task: asyncio.Task[T]) -> None:
        if key in self._running and self._running[key][0] is task:
            del self._running[key]
        if not task.cancelled():
            # Seen here so that asyncio does not report an error whose callers have all gone.
            task.exception()


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _run(work: Callable[[], Awaitable[T]]) -> T:
    return await work()
