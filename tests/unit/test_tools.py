"""Tools, their hosts and the canonical form of their parameters."""

from __future__ import annotations

import pytest

from loaders.errors import BadParameter, NotFound
from loaders.tools import ALL_HOSTS, TOOLS, canonical_parameters, find_tool, listed_hosts, order_tools, select_hosts

HOSTS = ["b", "a", "c"]


def test_the_first_host_by_name_stands_in_where_a_tool_takes_one_and_none_is_named() -> None:
    for host in (None, "", ALL_HOSTS):
        assert select_hosts(TOOLS["memory_profile"], HOSTS, host, None, "s") == ["a"]


def test_no_host_means_all_of_them_elsewhere() -> None:
    for tool in ("overview_page", "op_profile", "trace_viewer@", "kernel_stats"):
        assert select_hosts(TOOLS[tool], HOSTS, None, None, "s") == ["a", "b", "c"]
        assert select_hosts(TOOLS[tool], HOSTS, ALL_HOSTS, None, "s") == ["a", "b", "c"]


def test_a_list_of_hosts_counts_for_the_trace_viewer_only_and_repeats_are_dropped() -> None:
    assert select_hosts(TOOLS["trace_viewer@"], HOSTS, "a", "c,b,c", "s") == ["c", "b"]
    assert select_hosts(TOOLS["op_profile"], HOSTS, "a", "c,b", "s") == ["a"]


def test_a_host_whose_name_has_a_comma_is_found() -> None:
    assert select_hosts(TOOLS["trace_viewer@"], ["x,y", "z"], None, "x,y", "s") == ["x,y"]


def test_an_unknown_host_is_named_with_those_there_are() -> None:
    with pytest.raises(NotFound, match=r"no host 'd' in session 's'. Its hosts: a, b, c"):
        select_hosts(TOOLS["op_profile"], HOSTS, "d", None, "s")
    with pytest.raises(NotFound, match="'d'"):
        select_hosts(TOOLS["trace_viewer@"], HOSTS, None, "a,d", "s")


def test_hosts_are_offered_as_the_stock_server_offers_them() -> None:
    assert listed_hosts(TOOLS["overview_page"], ["a", "b"]) == [ALL_HOSTS]
    assert listed_hosts(TOOLS["kernel_stats"], ["a", "b"]) == [ALL_HOSTS, "a", "b"]
    assert listed_hosts(TOOLS["op_profile"], ["a", "b"]) == ["a", "b"]
    assert listed_hosts(TOOLS["overview_page"], ["a"]) == ["a"]
    assert listed_hosts(None, ["a", "b"]) == ["a", "b"]


def test_tools_are_ordered_as_the_stock_server_orders_them() -> None:
    found = ["zz", "hlo_stats", "trace_viewer", "trace_viewer@", "overview_page", "aa"]
    assert order_tools(found) == ["overview_page", "trace_viewer@", "hlo_stats", "aa", "zz"]


def test_parameters_that_mean_the_same_are_spelled_the_same() -> None:
    trace = TOOLS["trace_viewer@"]
    one = canonical_parameters(trace, {"resolution": "8000", "start_time_ms": "1.50", "replace_model": "true"})
    two = canonical_parameters(trace, {"start_time_ms": "1.5", "full_dma": "False", "new_backend": "x"})
    assert one == two
    graph = TOOLS["graph_viewer"]
    assert canonical_parameters(graph, {"graph_width": "x"}) == canonical_parameters(graph, {"graph_width": "3"})


def test_an_events_details_are_always_json() -> None:
    query = {"event_name": "fusion", "format": "pb"}
    assert dict(canonical_parameters(TOOLS["trace_viewer@"], query))["format"] == "json"


@pytest.mark.parametrize("value", ["x", "nan", "inf", "-inf", "1e999"])
def test_a_number_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(BadParameter, match="start_time_ms"):
        canonical_parameters(TOOLS["trace_viewer@"], {"start_time_ms": value})


@pytest.mark.parametrize("value", ["../x", "/etc/passwd", "a/b", "a\\b", "..", ".", "a\0b"])
def test_a_module_that_looks_like_a_path_is_refused(value: str) -> None:
    for tool in ("graph_viewer", "memory_viewer", "kernel_utilization"):
        with pytest.raises(BadParameter, match="module_name"):
            canonical_parameters(TOOLS[tool], {"module_name": value})


def test_an_unknown_tool_is_named_and_a_missing_one_asked_for() -> None:
    with pytest.raises(NotFound, match="no_such"):
        find_tool("no_such")
    with pytest.raises(NotFound, match="tool_names"):
        find_tool("tool_names")
    with pytest.raises(BadParameter, match="tag"):
        find_tool("")
    assert find_tool("op_profile^").name == "op_profile"
