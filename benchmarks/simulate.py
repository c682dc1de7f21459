"""Says how far sharding carries: a session of many hosts on 1 to 256 shards, simulated from measured costs.

    python -m benchmarks.simulate [--costs benchmarks/results/costs.json]

First come the sessions that were measured, to tell how far the simulation can be trusted.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.cluster_model import Cluster, Opening, open_session
from benchmarks.costs import DEFAULT_COSTS, Costs, SessionCosts
from benchmarks.report import text

SHARDS = (1, 2, 8, 64, 256)
HOSTS = (16, 256)
NOT_WORTH_IT = 0.1
"""More shards that take away less than this part of the time are not worth having."""
HALF = 0.5
SESSION = "run/2026_01_01_00_00_00"


def host_names(hosts: int) -> list[str]:
    """Names as clusters give them."""
    return [f"t1v-n-1234abcd-w-{number}" for number in range(hosts)]


def simulate(costs: SessionCosts, hosts: int, cluster: Cluster, shards: Sequence[int] = SHARDS) -> list[Opening]:
    """One session on each number of shards, fewest first."""
    return [open_session(SESSION, host_names(hosts), costs, replace(cluster, shards=count)) for count in shards]


def assumptions(costs: SessionCosts, cluster: Cluster) -> str:
    """What the simulation takes for granted, in words."""
    base, slope = costs.reduce_line
    measured = ", ".join(str(hosts) for hosts, _ in costs.reduces)
    return "\n".join(
        [
            f"{costs.name}: files of {costs.host_bytes / 1e6:.0f} MB, all alike. Assumed:",
            f"- {cluster.processes} engine processes per shard, each as fast as the one measured: a core of its own, "
            f"and memory bandwidth for all;",
            f"- per host {costs.inspect_seconds:.3f} s to inspect and {costs.map_seconds:.3f} s to map, and besides "
            f"{costs.overhead_seconds:.3f} s for each; measured, medians;",
            f"- a reduce of n hosts takes {base:.2f} + {slope:.4f} n s: a line through {measured} hosts;",
            f"- a shard downloads one file after the other, {cluster.download_rate / 1e6:.0f} MB/s after "
            f"{cluster.download_latency * 1000:.0f} ms, while its processes work on those that it has;",
            f"- {costs.map_output_bytes / 1e3:,.0f} KB of a host's map go to the reducer over "
            f"{cluster.network_rate * 8 / 1e9:g} Gbit/s, one after the other, and {costs.keep_seconds * 1000:.1f} ms "
            f"to keep them;",
            f"- {cluster.call_seconds * 1000:g} ms of the reducer's time per call to another shard;",
            "- every host on the one shard that the service's rendezvous hash gives it, nobody else about, and nothing "
            "fails.",
        ]
    )


def table(openings: Sequence[Opening]) -> list[list[str]]:
    """Rows, the first of them the headings. The first opening is what the others are compared with."""
    heads = ["hosts", "shards", "busiest has", "tools s", "mapped s", "collected s", "overview s"]
    heads += ["speed-up", "efficiency", "parsing", "imbalance", "transfer", "reduce", "bound by"]
    rows = [heads]
    for one in openings:
        times = [f"{value:.2f}" for value in (one.inspected, one.mapped, one.collected, one.finished)]
        gains = [f"{openings[0].finished / one.finished:.1f}", f"{efficiency(openings[0], one):.0%}"]
        parts = [f"{part / one.finished:.0%}" for part in one.parts.values()]
        rows.append([str(one.hosts), str(one.shards), str(one.busiest), *times, *gains, *parts, one.bound_by])
    return rows


def efficiency(first: Opening, one: Opening) -> float:
    """How much of what its shards could do is used, compared with the first opening: 1 is all."""
    return first.finished * first.shards / (one.finished * one.shards)


def verdict(openings: Sequence[Opening]) -> str:
    """How many shards are worth having, in words."""
    first = enough = openings[0]
    for one in openings[1:]:
        if one.finished < enough.finished * (1 - NOT_WORTH_IT):
            enough = one
    used = max(one.shards for one in openings if efficiency(first, one) >= HALF)
    more = "" if enough is openings[-1] else f" More, up to {openings[-1].shards}, hardly help."
    return (
        f"{first.hosts} hosts: at least half of what the shards can do is used up to {used} of them. The time falls "
        f"up to {enough.shards} shards, to {enough.finished:.1f} s from {first.finished:.1f} "
        f"({first.finished / enough.finished:.1f} times as fast), where it is bound by {enough.bound_by}.{more}"
    )


def validation(costs: Costs) -> list[list[str]]:
    """Rows, the first of them the headings: what was measured against what the simulation says of the same."""
    rows = [["session", "hosts", "shards", "measured s", "simulated s", "simulated/measured"]]
    by_name = {one.name: one for one in costs.sessions}
    for run in costs.runs:
        # Local files on one machine: nothing is downloaded, and nothing goes over a network.
        cluster = Cluster(run.shards, processes=1, download_rate=float("inf"), download_latency=0.0)
        names = [f"host-{number:03}" for number in range(run.hosts)]
        session = f"{run.session.replace(' ', '_')}/{run.hosts}-hosts"
        simulated = open_session(session, names, by_name[run.session], cluster).finished
        measured = run.inspection + run.overview
        figures = [f"{measured:.2f}", f"{simulated:.2f}", f"{simulated / measured:.2f}"]
        rows.append([run.session, str(run.hosts), str(run.shards), *figures])
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints assumptions, tables and what follows from them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--costs", type=Path, default=DEFAULT_COSTS, help="what benchmarks.scaling has written")
    parser.add_argument("--processes", type=int, default=Cluster(1).processes, help="engine processes per shard")
    parser.add_argument("--download", type=float, default=500, help="MB/s from the store into one shard (default 500)")
    parser.add_argument("--network", type=float, default=10, help="Gbit/s into one shard (default 10)")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    options = parser.parse_args(arguments)
    if not options.costs.is_file():
        parser.error(f"there is no file {options.costs}; python -m benchmarks.scaling makes it")
    costs = Costs.read(options.costs)
    cluster = Cluster(1, options.processes, options.download * 1e6, network_rate=options.network * 1e9 / 8)
    print(f"Costs of {costs.date}, {costs.machine.text}\n")
    print(text(validation(costs), options.markdown))
    for one in costs.sessions:
        print(f"\n{assumptions(one, cluster)}")
        for hosts in HOSTS:
            openings = simulate(one, hosts, cluster)
            print(f"\n{text(table(openings), options.markdown)}\n\n{verdict(openings)}")


if __name__ == "__main__":
    main()
