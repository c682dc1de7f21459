"""The simulated cluster does what can be reckoned by hand, with the service's own hash."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cluster_model import Cluster, open_session, owners
from benchmarks.costs import Costs, Run, SessionCosts, engine_calls, fitted_line
from benchmarks.discrete_events import Simulation, Station
from benchmarks.results_file import Machine
from benchmarks.simulate import SESSION, host_names, simulate, table, validation, verdict

COSTS = SessionCosts(
    name="made",
    host_bytes=1000,
    inspect_seconds=1.0,
    map_seconds=2.0,
    map_peak_bytes=0,
    overhead_seconds=0.0,
    inspect_output_bytes=0,
    map_output_bytes=0,
    keep_seconds=0.0,
    reduces=((1, 5.0), (3, 5.0)),
)
IDEAL = Cluster(1, processes=1, download_rate=float("inf"), download_latency=0.0, call_seconds=0.0)


def test_work_waits_in_its_order_for_a_free_place() -> None:
    simulation = Simulation()
    station = Station(simulation, places=2)
    ended: list[tuple[str, float]] = []
    for name, seconds in (("a", 3.0), ("b", 1.0), ("c", 1.0), ("d", 4.0)):
        station.do(seconds, lambda name=name: ended.append((name, simulation.now)))  # type: ignore[misc]
    simulation.run()
    assert ended == [("b", 1.0), ("c", 2.0), ("a", 3.0), ("d", 6.0)]
    assert station.busy_seconds == 9.0


def test_one_process_does_everything_after_the_other() -> None:
    opening = open_session("s", ["a", "b", "c"], COSTS, IDEAL)
    assert (opening.inspected, opening.mapped, opening.collected, opening.finished) == (3.0, 9.0, 9.0, 14.0)
    assert opening.parts == {"parsing": 9.0, "imbalance": 0.0, "transfer": 0.0, "reduce": 5.0}
    assert opening.bound_by == "parsing"


def test_two_processes_halve_the_parsing_and_not_the_reduce() -> None:
    opening = open_session("s", ["a", "b", "c", "d"], COSTS, replace(IDEAL, processes=2))
    assert (opening.inspected, opening.mapped, opening.finished) == (2.0, 6.0, 11.0)
    assert opening.bound_by == "parsing"


def test_every_host_is_with_its_owner_by_the_services_hash_and_the_busiest_shard_decides() -> None:
    hosts = host_names(16)
    reducer, owned_by = owners(SESSION, hosts, 4)
    counts = Counter(owned_by)
    assert sum(counts.values()) == 16
    assert reducer in range(4)
    busiest = max(counts.values())
    assert busiest > 4
    opening = open_session(SESSION, hosts, COSTS, replace(IDEAL, shards=4))
    assert opening.busiest == busiest
    assert (opening.inspected, opening.mapped, opening.finished) == (busiest, busiest * 3.0, busiest * 3.0 + 5.0)
    assert opening.parts["imbalance"] == (busiest - 4) * 3.0


def test_downloads_follow_each_other_while_processes_work_on_what_is_there() -> None:
    # 1 s of latency and 1 s of bytes each; the inspections, 1 s, fit in between.
    cluster = replace(IDEAL, download_latency=1.0, download_rate=1000.0)
    assert open_session("s", ["a", "b", "c"], COSTS, cluster).inspected == 7.0


def test_outputs_of_other_shards_come_in_one_after_the_other_and_the_reducers_own_for_nothing() -> None:
    hosts = host_names(8)
    reducer, owned_by = owners(SESSION, hosts, 2)
    away = sum(owner != reducer for owner in owned_by)
    assert 0 < away < 8
    costs = replace(COSTS, inspect_seconds=0.0, map_seconds=0.0, map_output_bytes=100, keep_seconds=0.5)
    opening = open_session(SESSION, hosts, costs, replace(IDEAL, shards=2, network_rate=50.0))
    # The inspections' outputs are empty and cost the keeping alone.
    assert opening.collected == pytest.approx(away * 0.5 + away * 2.5)
    assert opening.finished == pytest.approx(opening.collected + 5.0)
    assert opening.bound_by == "transfer"


def test_calls_cost_the_reducer_and_only_those_to_others() -> None:
    hosts = host_names(8)
    reducer, owned_by = owners(SESSION, hosts, 2)
    away = sum(owner != reducer for owner in owned_by)
    costs = replace(COSTS, inspect_seconds=0.0, map_seconds=0.0)
    opening = open_session(SESSION, hosts, costs, replace(IDEAL, shards=2, call_seconds=0.25))
    assert opening.finished == pytest.approx(2 * away * 0.25 + 5.0)


def test_what_a_map_takes_besides_the_engine_is_counted_for_both_steps() -> None:
    assert open_session("s", ["a", "b"], replace(COSTS, overhead_seconds=0.5), IDEAL).mapped == 8.0


def test_a_reduce_grows_along_the_line_through_what_was_measured_and_never_falls() -> None:
    costs = replace(COSTS, reduces=((2, 3.0), (4, 5.0), (16, 17.0)))
    assert fitted_line(costs.reduces) == pytest.approx((1.0, 1.0))
    assert costs.reduce_seconds(256) == pytest.approx(257.0)
    assert replace(COSTS, reduces=((2, 3.0), (4, 1.0))).reduce_seconds(256) == 2.0
    assert fitted_line([(4, 2.0), (4, 4.0)]) == (3.0, 0.0)
    with pytest.raises(ValueError, match="nothing to fit"):
        fitted_line([])


def test_the_table_compares_with_the_first_row_and_the_verdict_says_where_more_shards_stop_helping() -> None:
    openings = simulate(replace(COSTS, reduces=((1, 0.0), (2, 0.0))), 256, IDEAL, (1, 2, 256))
    rows = table(openings)
    assert rows[1][:3] == ["256", "1", "256"]
    assert rows[1][7:9] == ["1.0", "100%"]
    assert rows[2][2] == str(openings[1].busiest)
    assert float(rows[2][7]) == pytest.approx(256 / openings[1].busiest, abs=0.06)
    assert "up to 256 shards" in verdict(openings)
    slow_reduce = simulate(replace(COSTS, reduces=((1, 1e6), (2, 1e6))), 256, IDEAL, (1, 2, 256))
    assert "up to 1 shards" in verdict(slow_reduce)
    assert "bound by reduce. More, up to 256, hardly help." in verdict(slow_reduce)


def test_costs_survive_their_file_and_runs_are_compared_with_the_simulation(tmp_path: Path) -> None:
    run = Run("made", 3, 1, inspection=3.5, overview=10.5, traces=None)
    costs = Costs("2026-12-01", Machine.here(), (COSTS,), (run,))
    costs.write(tmp_path / "costs.json")
    assert Costs.read(tmp_path / "costs.json") == costs
    assert validation(costs)[1] == ["made", "3", "1", "14.00", "14.00", "1.00"]


def test_engine_calls_are_those_of_the_request_asked_for(tmp_path: Path) -> None:
    lines = [
        '{"message": "engine call done", "request_id": "r1", "call": "map_op_stats", "seconds": 1.5, "peak_bytes": 7}',
        '{"message": "engine call done", "request_id": "r1", "call": "map_op_stats", "seconds": 2.5, "peak_bytes": 9}',
        '{"message": "engine call done", "request_id": "r2", "call": "map_op_stats", "seconds": 99, "peak_bytes": 99}',
        '{"message": "mapped a host", "request_id": "r1"}',
        '{"message": "engine call failed", "request_id": "r1", "call": "tool_data", "seconds": 1, "peak_bytes": 99}',
    ]
    (tmp_path / "xprof-hosting.jsonl").write_text("\n".join(lines))
    calls = engine_calls(tmp_path, "r1")
    assert calls.seconds == {"map_op_stats": [1.5, 2.5]}
    assert (calls.median("map_op_stats"), calls.median("tool_data"), calls.peak_bytes, calls.total) == (2.0, None, 9, 4)
