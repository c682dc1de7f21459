"""Ray Serve's request router for shards: the same key goes to the same replica while that is sensible.

Rendezvous hashing of the key over the replicas' slots. A slot is the replica's rank, so that a replacement inherits the
keys of the one it replaces and nobody else's keys move.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Any

from ray.serve.request_router import LocalityMixin, PendingRequest, RequestRouter, RunningReplica

SLOT_FIELD = "slot"


def rank_slots(key: str, slots: list[str]) -> list[str]:
    """The slots in the order in which they should serve `key`."""
    return sorted(slots, key=lambda slot: _score(key, slot), reverse=True)


@dataclass(frozen=True, slots=True)
class Owners:
    """Which of a key's replicas a call may go to: so many from a place in the key's order on, the least loaded of them
    first. Travels as the call's session id."""

    key: str
    first: int = 0
    count: int = 1
    strict: bool = False
    """Whether no other replica may take the call, however long the owners do not answer."""

    def encode(self) -> str:
        """As a session id."""
        return f"{self.first}:{self.count}:{self.strict:d}:{self.key}"

    @classmethod
    def decode(cls, text: str) -> Owners:
        """What `encode` made."""
        first, count, strict, key = text.split(":", 3)
        return cls(key, int(first), int(count), strict == "1")

    def ranks(self, slots: list[str]) -> list[list[str]]:
        """The slots in groups, the preferred ones first; within a group the load decides."""
        ranked = rank_slots(self.key, slots)
        end = self.first + self.count
        owners, others = ranked[self.first : end], ranked[end:] + ranked[: self.first]
        return [group for group in (owners, *([slot] for slot in others)) if group]


def _score(key: str, slot: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{key}\0{slot}".encode(), digest_size=8).digest(), "big")


class AffinityRouter(LocalityMixin, RequestRouter):
    """Sends a call to the replicas that its session id, an encoded `Owners`, prefers; to others when those do not
    answer within `spill_after_s`.

    Not first in, first out: Ray's mixin of that name hands the replica picked for one key to the oldest request.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._spill_after_s = 1.0
        self._max_routing_tasks = 256
        self._by_metadata: dict[int, PendingRequest] = {}

    def initialize_state(self, **kwargs: Any) -> None:
        """Takes the router's arguments from the deployment's configuration.

        Args:
            kwargs: `spill_after_s`, seconds for which a request waits for its owner before others may take it, and
                `max_routing_tasks`, requests routed at once; Ray's default, twice the replicas, lets one hot key block
                others.
        """
        self._spill_after_s = float(kwargs.get("spill_after_s", self._spill_after_s))
        self._max_routing_tasks = int(kwargs.get("max_routing_tasks", self._max_routing_tasks))

    # Ray Serve 2.60 indexes waiting requests by the id of the request they came from, which concurrent calls made
    # inside one request share: all but one would wait for ever. The metadata object is each call's own.
    def _add_pending_request_to_indices(self, pending_request: PendingRequest) -> None:
        self._by_metadata[id(pending_request.metadata)] = pending_request

    def _remove_pending_request_from_indices(self, pending_request: PendingRequest) -> None:
        self._by_metadata.pop(id(pending_request.metadata), None)

    def _get_pending_request_matching_internal_request_id(self, request_metadata: Any = None) -> PendingRequest | None:
        pending = self._by_metadata.get(id(request_metadata))
        return pending if pending is not None and not pending.future.done() else None

    @property
    def max_num_routing_tasks(self) -> int:
        """Requests routed at once."""
        return self._max_routing_tasks

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Ranks the replicas for a request: its owners, then, once it has waited, the next in order."""
        if not candidate_replicas:
            return []
        if pending_request is None:
            return [candidate_replicas]
        # Without it the loop spins while all replicas are full.
        pending_request.routing_context.should_backoff = True
        metadata = pending_request.metadata
        owners = Owners.decode(metadata.session_id) if metadata.session_id else Owners(metadata.internal_request_id)
        by_slot = {_slot(replica): replica for replica in candidate_replicas}
        ranks = [[by_slot[slot] for slot in group] for group in owners.ranks(list(by_slot))]
        waited = time.time() - pending_request.created_at
        return ranks if waited >= self._spill_after_s and not owners.strict else ranks[:1]


def _slot(replica: RunningReplica) -> str:
    return str(replica.replica_metadata.get(SLOT_FIELD, replica.replica_id.unique_id))
