"""The plan by which a session is opened: whole on one shard, or split over the shards by host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from hosting.affinity_router import rank_slots
from loaders.jobs import host_affinity
from loaders.sessions import Session

_MIB: Final = 1 << 20
# The largest resident size per byte of an XPlane file that xprof 2.24.2 reached here: a TPU host's op stats, 2.2 GB for
# 81 MB. GPU files take half of that. A process has some 100 MB before it has read anything.
_PEAK_PER_BYTE: Final = 28
_PEAK_AT_REST: Final = 100 * _MIB


@dataclass(frozen=True, slots=True)
class HostPlan:
    """Where one host's file is parsed."""

    host: str
    bytes: int
    predicted_peak_bytes: int
    """Resident bytes that the process which parses it may reach."""
    shard: str
    """The slot of the shard that owns it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a session is opened."""

    split: bool
    reason: str
    bytes: int
    budget_bytes: int
    shard: str
    """The slot of the shard that owns the session: it reduces what the hosts' maps have left, or does everything."""
    hosts: tuple[HostPlan, ...]

    def log_fields(self) -> dict[str, Any]:
        """The plan for a log line."""
        return {
            "split": self.split,
            "reason": self.reason,
            "bytes": self.bytes,
            "reducer": self.shard,
            "hosts": {item.host: [item.bytes, item.shard] for item in self.hosts},
        }


def splits(session: Session, budget_bytes: int) -> bool:
    """Whether a session is split by host; the rest of the plan is for people."""
    return len(session.hosts) > 1 and sum(item.file.size for item in session.hosts) > budget_bytes


def plan_session(session: Session, budget_bytes: int, shards: int) -> Plan:
    """The plan for a session.

    A session whose files together fit a shard's budget is opened whole on one shard, so that nothing travels; a bigger
    one is split by host, so that several shards parse at once and each holds a part.

    Args:
        budget_bytes: bytes of XPlane files that one shard opens whole.
        shards: how many shards there are; their slots are numbered from 0.
    """
    total = sum(item.file.size for item in session.hosts)
    split = splits(session, budget_bytes)
    slots = [str(number) for number in range(shards)]
    owner = rank_slots(session.name, slots)[0]
    hosts = tuple(
        HostPlan(
            host=item.host,
            bytes=item.file.size,
            predicted_peak_bytes=_PEAK_AT_REST + _PEAK_PER_BYTE * item.file.size,
            shard=rank_slots(host_affinity(session.name, item.host), slots)[0] if split else owner,
        )
        for item in session.hosts
    )
    size = f"{len(hosts)} host{'' if len(hosts) == 1 else 's'} with {total / _MIB:.1f} MiB"
    budget = f"{budget_bytes / _MIB:.0f} MiB that one shard opens whole"
    if split:
        reason = f"{size} exceed the {budget} (--shard-budget-mib): each host is parsed by the shard that owns it."
    elif len(hosts) == 1:
        reason = f"{size}: there is nothing to split."
    else:
        reason = f"{size} fit the {budget} (--shard-budget-mib): nothing has to travel between shards."
    return Plan(split, reason, total, budget_bytes, owner, hosts)
