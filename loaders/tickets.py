"""Who still wants a piece of work, and how urgently, while it waits for its turn."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final


class Ticket:
    """One asker's interest, or the joint interest of all who wait for the same piece of work.

    An asker's own ticket says itself whether it is wanted and urgent. A shared piece of work has a ticket that others
    join: it is wanted as long as one of them is, and urgent as soon as one of those is. Not safe across threads.
    """

    def __init__(self, *, urgent: bool = False, wanted: bool = False) -> None:
        self._urgent = urgent
        self._wanted = wanted
        self._askers: list[Ticket] = []
        self._work: list[Ticket] = []
        self._watchers: list[Callable[[], None]] = []

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits for the work."""
        return self._wanted or any(asker.wanted for asker in self._askers)

    @property
    def urgent(self) -> bool:
        """Whether a person waits for it; other work is done when there is nothing better to do."""
        return (self._urgent and self._wanted) or any(asker.urgent for asker in self._askers)

    def join(self, asker: Ticket) -> None:
        """Lets an asker wait for this work, too."""
        self._askers.append(asker)
        asker._work.append(self)
        self._changed()

    def leave(self, asker: Ticket) -> None:
        """Takes an asker's interest back."""
        self._askers.remove(asker)
        asker._work.remove(self)
        self._changed()

    def give_up(self) -> None:
        """Ends an asker's own interest."""
        self._wanted = False
        self._changed()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Calls `watcher` after every change of interest, until `unwatch`."""
        self._watchers.append(watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Ends what `watch` began."""
        self._watchers.remove(watcher)

    def _changed(self) -> None:
        for watcher in list(self._watchers):
            watcher()
        for work in list(self._work):
            work._changed()


current_ticket: Final[ContextVar[Ticket | None]] = ContextVar("current_ticket", default=None)
"""The ticket of the work that runs in this context."""


def ticket_here() -> Ticket:
    """The ticket of this context, or one of a person who waits, where nothing else was said."""
    return current_ticket.get() or Ticket(urgent=True, wanted=True)
