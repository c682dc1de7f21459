from __future__ import annotations

from benchmarks.report import Memory, Speed, memory_table, speed_table, text

STOCK = Speed("W", "op_profile", "stock", cold=[4.0, 2.0], warm=[0.5, 0.3, 0.4], rate=2.0)
OURS = Speed("W", "op_profile", "hosting", cold=[1.5, 1.5], warm=[0.01], rate=50.0)


def test_speeds_are_medians_and_compared_to_stock() -> None:
    heads, row = speed_table([OURS, STOCK], 8)
    assert heads[8] == "8 viewers, views/s"
    assert row == ["W", "op_profile", "3.00", "1.50", "0.50", "400.0", "10.0", "40.00", "2.0", "50.0", "25.00"]


def test_what_was_not_measured_is_a_dash_and_never_a_number() -> None:
    row = speed_table([Speed("W", "op_profile", "stock"), OURS], 8)[1]
    assert row == ["W", "op_profile", "-", "1.50", "-", "-", "10.0", "-", "-", "50.0", "-"]


def test_memory_is_growth_over_idle_in_megabytes() -> None:
    memory = Memory("W", "stock", idle=100_000_000, growth={1: 1_000_000_000, 8: 2_500_000_000})
    assert memory_table([memory], 8)[1] == ["W", "stock", "100", "1,000", "2,500", "2.50"]


def test_tables_are_aligned_text_or_markdown() -> None:
    rows = [["a", "b", "number"], ["long name", "x", "1"]]
    assert text(rows, markdown=False) == "a          b  number\nlong name  x       1"
    assert text(rows, markdown=True).splitlines()[1] == "|---|---|--:|"
