"""Ray Serve's request router for shards: the same key goes to the same replica while that is sensible.

Rendezvous hashing of the key over the replicas' slots. A slot is the replica's rank, so that a replacement inherits the
keys of the one it replaces and nobody else's keys move.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

from ray.serve.request_router import LocalityMixin, PendingRequest, RequestRouter, RunningReplica

SLOT_FIELD = "slot"


def rank_slots(key: str, slots: list[str]) -> list[str]:
    """The slots in the order in which they should serve `key`."""
    return sorted(slots, key=lambda slot: _score(key, slot), reverse=True)


def _score(key: str, slot: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{key}\0{slot}".encode(), digest_size=8).digest(), "big")


class AffinityRouter(LocalityMixin, RequestRouter):
    """Sends a call with `session_id` to the replica that owns it; to the next one after `spill_after_s` of waiting.

    Not first in, first out: Ray's mixin of that name hands the replica picked for one key to the oldest request.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._spill_after_s = 5.0
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
        """Ranks the replicas for a request: its owner, then, once it has waited, the next in order."""
        if not candidate_replicas:
            return []
        if pending_request is None:
            return [candidate_replicas]
        # Without it the loop spins while all replicas are full.
        pending_request.routing_context.should_backoff = True
        metadata = pending_request.metadata
        key = metadata.session_id or metadata.internal_request_id
        by_slot = {_slot(replica): replica for replica in candidate_replicas}
        ranked = [by_slot[slot] for slot in rank_slots(key, list(by_slot))]
        waited = time.time() - pending_request.created_at
        return [[replica] for replica in (ranked if waited >= self._spill_after_s else ranked[:1])]


def _slot(replica: RunningReplica) -> str:
    return str(replica.replica_metadata.get(SLOT_FIELD, replica.replica_id.unique_id))
