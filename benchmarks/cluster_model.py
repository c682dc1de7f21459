"""A model of opening a session of many hosts: the service's steps, from measured costs, on a cluster of any size.

The UI first asks for the session's tools. For that every host's owner, the shard that rendezvous hashing gives it to,
downloads its file and inspects it, and the session's owner collects what was found. Then the overview is asked for:
owners map their hosts, the session's owner collects the outputs and reduces them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.costs import SessionCosts
from benchmarks.discrete_events import Simulation, Station
from hosting.affinity_router import rank_slots
from loaders.jobs import host_affinity


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is assumed of the shards and what is between them. Seconds, and bytes per second."""

    shards: int
    processes: int = 2
    """Engine processes per shard, each as fast as the one measured, whatever the others do."""
    download_rate: float = 500e6
    """From the store to one shard; a shard's downloads follow each other."""
    download_latency: float = 0.03
    network_rate: float = 1.25e9
    """Into one shard from all others together."""
    call_seconds: float = 0.002
    """What the session's owner spends on a call to another shard, one after the other."""


@dataclass(frozen=True, slots=True)
class Opening:
    """How a session was opened. Seconds from the first request; each includes those before it."""

    hosts: int
    shards: int
    busiest: int
    """The most hosts that one shard owns."""
    inspected: float
    mapped: float
    """The last host is mapped."""
    collected: float
    """The last map's output is at the reducer."""
    finished: float
    even: float
    """What inspecting and mapping would take if every process had the same share of them."""

    @property
    def parts(self) -> dict[str, float]:
        """Where the time goes: `parsing` at an even share, what is lost to `imbalance`, `transfer`, `reduce`."""
        return {
            "parsing": min(self.even, self.mapped),
            "imbalance": max(0.0, self.mapped - self.even),
            "transfer": self.collected - self.mapped,
            "reduce": self.finished - self.collected,
        }

    @property
    def bound_by(self) -> str:
        """The part that takes the most."""
        return max(self.parts, key=self.parts.__getitem__)


def owners(session: str, hosts: Sequence[str], shards: int) -> tuple[int, list[int]]:
    """The shard that reduces, and the one that owns each host, by the service's own hash."""
    slots = [str(slot) for slot in range(shards)]
    chosen = [int(rank_slots(host_affinity(session, host), slots)[0]) for host in hosts]
    return int(rank_slots(session, slots)[0]), chosen


def open_session(session: str, hosts: Sequence[str], costs: SessionCosts, cluster: Cluster) -> Opening:
    """Simulates one viewer who opens the overview of a cold session on idle shards."""
    reducer, owned_by = owners(session, hosts, cluster.shards)
    simulation = Simulation()
    disks = [Station(simulation) for _ in range(cluster.shards)]
    processes = [Station(simulation, cluster.processes) for _ in range(cluster.shards)]
    calls, incoming = Station(simulation), Station(simulation)
    times: dict[str, float] = {}

    def step(prepare: float, seconds: float, output: int, name: str, then: Callable[[], None]) -> None:
        """Has every host's owner prepare and work on it and send the output to the reducer; `then` what follows."""
        left = {"work": len(hosts), "output": len(hosts)}

        def one_less(what: str, reached: str, at_end: Callable[[], None] | None) -> None:
            left[what] -= 1
            if not left[what]:
                times[reached] = simulation.now
                if at_end:
                    at_end()

        def worked(owner: int) -> None:
            one_less("work", name, None)
            # On its own machine the reducer finds the output in the cache.
            moved = 0.0 if owner == reducer else output / cluster.network_rate + costs.keep_seconds
            incoming.do(moved, lambda: one_less("output", f"{name}, collected", then))

        def begin(owner: int) -> None:
            work = seconds + costs.overhead_seconds
            disks[owner].do(prepare, lambda: processes[owner].do(work, lambda: worked(owner)))

        for owner in owned_by:
            calls.do(0.0 if owner == reducer else cluster.call_seconds, lambda owner=owner: begin(owner))  # type: ignore[misc]

    def reduce() -> None:
        processes[reducer].do(costs.reduce_seconds(len(hosts)), finish)

    def finish() -> None:
        times["finished"] = simulation.now

    def map_all() -> None:
        step(0.0, costs.map_seconds, costs.map_output_bytes, "mapped", reduce)

    download = cluster.download_latency + costs.host_bytes / cluster.download_rate
    step(download, costs.inspect_seconds, costs.inspect_output_bytes, "inspected", map_all)
    simulation.run()
    work = costs.inspect_seconds + costs.map_seconds + 2 * costs.overhead_seconds
    even = max(work / cluster.processes, download) * len(hosts) / cluster.shards
    return Opening(
        hosts=len(hosts),
        shards=cluster.shards,
        busiest=max(Counter(owned_by).values()),
        inspected=times["inspected"],
        mapped=times["mapped"],
        collected=times["mapped, collected"],
        finished=times["finished"],
        # No process can do less than one host, once there are more processes than hosts.
        even=max(even, download + work),
    )
