"""How many gateways there are, and where they have to run, for what takes HTTP."""

from __future__ import annotations

import os
from typing import Final

from hosting.settings import Settings

_MOST: Final = 8
_CORES_PER_GATEWAY: Final = 4


def gateway_count(settings: Settings, *, retried: bool) -> int:
    """As many as asked for, or one for every four cores of this machine: engines need the cores more, and one gateway
    sends some 2,000 stored answers a second. At least two where `retried`, which is when something in front of them
    asks another one for what a dying one has not answered."""
    if settings.gateways is not None:
        return settings.gateways
    return max(2 if retried else 1, min(_MOST, (os.cpu_count() or 1) // _CORES_PER_GATEWAY))


def gateway_placement(settings: Settings, *, loopback: bool) -> dict[str, float]:
    """The Ray resources that keep gateways on this machine of a cluster, where they can't be reached on another: when
    they take HTTP themselves, and when HAProxy would have to reach them over another machine's loopback. Needs Ray."""
    if settings.ray_address is None or settings.front == "python" or (settings.front == "haproxy" and not loopback):
        return {}
    import ray

    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call, unused-ignore]
    return {f"node:{address}": 0.001}
