"""Turns at a bounded resource: people's requests first, and nothing for those who have gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from loaders.tickets import Ticket, ticket_here


@dataclass(eq=False, slots=True)
class Turn:
    """A held slot."""

    ticket: Ticket
    preempt: Callable[[], None] | None = None
    """Set by the holder: stops its work, so that the slot becomes free. Called at most once."""
    preempted: bool = False


@dataclass(eq=False, slots=True)
class _Waiting:
    ticket: Ticket
    granted: asyncio.Future[Turn] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Slots:
    """Hands out so many turns at once, the urgent ones in the order they came, then the others.

    Work that is not urgent never holds the last slot where there are several, and gives its own up when urgent work
    finds none. Waiting work that nobody wants any more is dropped: its wait ends in CancelledError.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._turns: list[Turn] = []
        self._waiting: list[_Waiting] = []

    @property
    def free(self) -> int:
        """Slots that urgent work could have at once."""
        return self._number - sum(turn.ticket.urgent for turn in self._turns)

    @property
    def waiting(self) -> int:
        """How many wait for a turn."""
        return len(self._waiting)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Turn]:
        """Waits for a turn under the context's ticket and holds it while the block runs.

        Raises:
            asyncio.CancelledError: nobody wanted the work any more while it waited.
        """
        waiting = _Waiting(ticket_here())
        self._waiting.append(waiting)
        waiting.ticket.watch(self._reconsider)
        try:
            self._reconsider()
            turn = await waiting.granted
        except BaseException:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            elif waiting.granted.done() and not waiting.granted.cancelled():
                self._turns.remove(waiting.granted.result())
            waiting.ticket.unwatch(self._reconsider)
            self._reconsider()
            raise
        try:
            yield turn
        finally:
            self._turns.remove(turn)
            waiting.ticket.unwatch(self._reconsider)
            self._reconsider()

    def _reconsider(self) -> None:
        """Drops what nobody wants, grants what can be granted, and takes back what urgent work needs."""
        for waiting in [each for each in self._waiting if not each.ticket.wanted]:
            self._waiting.remove(waiting)
            waiting.granted.cancel()
        urgent = [each for each in self._waiting if each.ticket.urgent]
        room = self._number - len(self._turns)
        for waiting in urgent[:room]:
            self._grant(waiting)
        missing = len(urgent[room:]) - sum(turn.preempted for turn in self._turns)
        for _ in range(missing):
            self._preempt_one()
        if not urgent:
            most = max(1, self._number - 1)
            for waiting in list(self._waiting):
                if len(self._turns) < self._number and self._others() < most:
                    self._grant(waiting)

    def _grant(self, waiting: _Waiting) -> None:
        self._waiting.remove(waiting)
        turn = Turn(waiting.ticket)
        self._turns.append(turn)
        waiting.granted.set_result(turn)

    def _others(self) -> int:
        return sum(not turn.ticket.urgent for turn in self._turns)

    def _preempt_one(self) -> None:
        """Stops the youngest work that is not urgent, if there is any."""
        for turn in reversed(self._turns):
            if not turn.ticket.urgent and turn.preempt is not None and not turn.preempted:
                turn.preempted = True
                turn.preempt()
                return
