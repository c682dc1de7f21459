"""Which sessions are asked for so much that one shard does not keep up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from hosting import metrics

_RESULTS_PER_PROCESS: Final = 2


class HotSessions:
    """Counts the results of each session, or host, that its shard is making. Owned by one shard.

    The shard that owns a session decides alone how many help it, and hands them what they make; so each result is made
    once, whoever asks for it through whichever gateway.
    """

    def __init__(self, processes: int) -> None:
        """`processes`: how many results this shard makes at once."""
        self._capacity = processes * _RESULTS_PER_PROCESS
        self._making: Counter[str] = Counter()

    @contextmanager
    def making(self, affinity: str) -> Iterator[None]:
        """Counts one result while the block runs."""
        self._making[affinity] += 1
        self._tell()
        try:
            yield
        finally:
            self._making[affinity] -= 1
            if not self._making[affinity]:
                del self._making[affinity]
            self._tell()

    def owners(self, affinity: str) -> int:
        """How many shards should work on the session now: one more for each further lot that a shard can take on."""
        return 1 + max(0, self._making[affinity] - 1) // self._capacity

    def _tell(self) -> None:
        metrics.HOT_SESSIONS.set(sum(self.owners(affinity) > 1 for affinity in self._making))
