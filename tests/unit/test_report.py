"""A benchmark's tables say what was measured, what failed and what was left out, and nothing else."""

from __future__ import annotations

from pathlib import Path

from benchmarks.report import different_sizes, main, memory_table, report, speed_table, text
from benchmarks.results_file import Memory, Results, Speed
from benchmarks.targets import targets_table

GPU = "GPU 1x79 MB"
TPU4 = "TPU 4x40 MB"


def _cold(speed: Speed) -> str:
    return f"{speed.cold[0]:.1f}" if speed.cold else "-"


def _results() -> Results:
    results = Results()
    for speed in (
        Speed(GPU, "op_profile", "stock", cold=[4.0, 2.0], warm=[0.5, 0.3, 0.4], rates={1: 2.0, 8: 4.0}, size=100),
        Speed(GPU, "op_profile", "xprof-rs", cold=[1.0], warm=[0.001], size=100),
        Speed(GPU, "op_profile", "hosting", cold=[1.4, 1.5, 1.9], warm=[0.01], rates={64: 50.0}, size=100),
        Speed(GPU, "op_profile", "hosting, bucket", cold=[1.8]),
        Speed(GPU, "trace_viewer@", "stock", rates={8: 4.0}, problems={"64": "not all answered in 18 s"}),
        Speed(GPU, "trace_viewer@", "hosting", rates={64: 100.0}),
        Speed(TPU4, "overview_page", "stock", cold=[10.0], rates={1: 0.5}),
        Speed(TPU4, "overview_page", "xprof-rs", problems={"cold": "refused (500)"}),
        Speed(TPU4, "overview_page", "hosting", cold=[9.0], rates={64: 40.0}),
        Speed(TPU4, "overview_page", "hosting, 2 shards", cold=[7.0]),
    ):
        results.add(speed)
    for server, growth in (("stock", 2_000_000_000), ("hosting", 700_000_000)):
        results.add(Memory(TPU4, server, 8, idle=100_000_000, growth=growth, largest=500_000_000))
    return results


def test_a_server_that_failed_shows_why_and_one_that_was_not_measured_a_dash() -> None:
    speeds = [
        Speed("W", "op_profile", "hosting", cold=[1.5]),
        Speed("W", "op_profile", "xprof-rs", problems={"cold": "refused (500)"}),
        Speed("W", "trace_viewer@", "hosting", cold=[2.5]),
    ]
    assert speed_table(speeds, "cold", _cold) == [
        ["session", "tool", "xprof-rs", "hosting"],
        ["W", "op_profile", "refused (500)", "1.5"],
        ["W", "trace_viewer@", "-", "2.5"],
    ]


def test_rows_without_any_figure_and_servers_without_any_are_left_out() -> None:
    speeds = [Speed("W", "a", "stock", cold=[1.0]), Speed("W", "b", "stock"), Speed("W", "a", "hosting")]
    assert speed_table(speeds, "cold", _cold) == [["session", "tool", "stock"], ["W", "a", "1.0"]]


def test_memory_is_growth_over_idle_beside_the_largest_process_in_megabytes() -> None:
    memory = Memory("W", "stock", 8, idle=100_000_000, growth=2_500_000_000, largest=900_000_000, problem="died")
    assert memory_table([memory])[1] == ["W", "stock", "8", "100", "2,500", "900", "died"]


def test_targets_count_what_meets_them_and_name_the_worst() -> None:
    rows = {row[0]: row[1:] for row in targets_table(_results())}
    assert rows["cold open, a file that xprof-rs can read"] == [
        "1.5 x xprof-rs",
        "1 of 1",
        f"1.50 x ({GPU}, op_profile)",
    ]
    assert rows["cold open, hosts that it cannot, 2 shards"][1:] == ["1 of 1", f"0.70 x ({TPU4}, overview_page)"]
    assert rows["cold open, one host that it cannot"][1:] == ["0 of 0", "not measured"]
    assert rows["warm open, p50"][1:] == ["0 of 1", f"10.0 of 8.0 ms ({GPU}, op_profile)"]
    assert rows["cold open from the bucket"][1:] == ["1 of 1", f"1.20 x ({GPU}, op_profile)"]
    assert rows["memory, TPU 4x40 MB, 8 viewers"][1:] == ["1 of 1", f"0.35 x ({TPU4})"]


def test_many_viewers_are_compared_with_the_stock_servers_best_rate() -> None:
    rows = {row[0]: row[1:] for row in targets_table(_results())}
    assert rows["64 viewers, GPU trace"] == ["20 x stock", "1 of 1", f"25 x ({GPU}, trace_viewer@)"]
    assert rows["64 viewers, overview and TPU trace"] == ["100 x stock", "0 of 1", f"80 x ({TPU4}, overview_page)"]


def test_a_stock_server_too_slow_for_any_rate_counts_with_what_one_view_took() -> None:
    results = Results()
    results.add(Speed(TPU4, "trace_viewer@", "stock", warm=[4.0, 5.0, 6.0], rates={1: 0.0}, problems={"1": "late"}))
    results.add(Speed(TPU4, "trace_viewer@", "hosting", rates={64: 30.0}))
    rows = {row[0]: row[1:] for row in targets_table(results)}
    assert rows["64 viewers, overview and TPU trace"][1:] == ["1 of 1", f"150 x ({TPU4}, trace_viewer@)"]


def test_a_failed_server_is_not_compared_with() -> None:
    results = Results()
    results.add(Speed(GPU, "op_profile", "xprof-rs", cold=[1.0], problems={"cold": "died"}))
    results.add(Speed(GPU, "op_profile", "hosting", cold=[9.0]))
    assert targets_table(results)[1][2:] == ["0 of 0", "not measured"]


def test_answers_of_other_sizes_are_named() -> None:
    speeds = [Speed("W", "t", "stock", size=100), Speed("W", "t", "xprof-rs", size=101)]
    assert different_sizes(speeds) == []
    speeds.append(Speed("W", "t", "hosting", size=90))
    assert different_sizes(speeds) == ["W, t: answers differ in size: stock 100, xprof-rs 101, hosting 90 bytes"]


def test_numbers_survive_their_file_and_newer_ones_replace_older(tmp_path: Path) -> None:
    path = tmp_path / "results" / "bench.json"
    written = Results(path)
    written.add(Speed(GPU, "op_profile", "stock", cold=[4.0], rates={64: 2.5}, problems={"zoom": "died"}))
    written.add(Memory(GPU, "stock", 8, idle=1, growth=2, largest=3))
    written.add(Speed(GPU, "op_profile", "stock", cold=[5.0], rates={64: 3.5}))
    read = Results(path)
    assert read.cells == written.cells
    assert [(speed.cold, speed.rates) for speed in read.speeds] == [([5.0], {64: 3.5})]
    assert (read.machine, read.dates) == (written.machine, written.dates)


def test_the_report_is_made_from_the_file_alone(tmp_path: Path) -> None:
    results = Results(tmp_path / "bench.json")
    for cell in _results().cells.values():
        results.add(cell)
    expected = report(Results(tmp_path / "bench.json"), markdown=True)
    for title in ("To reach", "Cold open, s (median)", "Warm, ms (median)", "64 viewers, views/s", "Memory, MB"):
        assert f"**{title}**" in expected
    assert "Zoom" not in expected
    assert results.machine.text in expected
    assert main([str(tmp_path / "bench.json")]) == 0


def test_tables_are_aligned_text_or_markdown() -> None:
    rows = [["a", "b", "number"], ["long name", "x", "1"]]
    assert text(rows, markdown=False) == "a          b  number\nlong name  x       1"
    assert text(rows, markdown=True).splitlines()[1] == "|---|---|--:|"
