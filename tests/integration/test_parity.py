"""Every answer of the UI's API equals the stock server's on the same files.

The stock server is asked with `use_saved_result=false`: it keeps the op stats of whatever hosts it was asked for first
under one name, `ALL_HOSTS.op_stats_v2.pb`, and then answers from them for every host. Of a trace it is asked for the
window and the resolution that we answer with, which are not quite the viewer's (`loaders.trace_windows`).
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from benchmarks.same_answer import same_answer
from loaders.tools import TOOLS, canonical_parameters
from tests.conftest import PROFILES

API = "data/plugin/profile/"
KINDS = ["cpu", *PROFILES]
SESSIONS = [f"{kind}/{size}" for kind in KINDS for size in ("one", "two", "four") if (kind, size) != ("cpu", "four")]

# What the UI sends, less the graph's node, which the test finds in the module's text.
EXTRA: dict[str, list[dict[str, str]]] = {
    "trace_viewer@": [
        {"resolution": "3640", "full_dma": "false"},
        {"resolution": "3640", "start_time_ms": "1.5", "end_time_ms": "4.25"},
    ],
    "op_profile": [{"group_by": "program"}, {"group_by": "category"}],
    "memory_profile": [{"host_id": "0"}],
}


@pytest.fixture(params=SESSIONS)
def run(request: pytest.FixtureRequest) -> str:
    """A session that both servers have."""
    name: str = request.param
    kind = name.split("/")[0]
    if kind in PROFILES and not PROFILES[kind].is_file():
        pytest.skip(f"the shared {kind} profile is missing")
    return name


def test_runs_are_named_and_ordered_as_the_stock_server_does(client: httpx.Client, stock: httpx.Client) -> None:
    ours = [name for name in client.get(f"{API}runs").json() if not name.startswith("bad/")]
    assert ours == stock.get(f"{API}runs").json()


def test_tools_hosts_and_modules_equal_the_stock_servers(client: httpx.Client, stock: httpx.Client, run: str) -> None:
    ours, theirs = (c.get(f"{API}run_tools", params={"run": run}).json() for c in (client, stock))
    assert ours == theirs
    assert ours
    for tool in [*ours, "pod_viewer", "smart_suggestion", "megascale_stats"]:
        hosts = [c.get(f"{API}hosts", params={"run": run, "tag": tool}).json() for c in (client, stock)]
        assert hosts[0] == hosts[1], tool
    modules = [c.get(f"{API}module_list", params={"run": run, "tag": "graph_viewer"}) for c in (client, stock)]
    assert modules[0].text == modules[1].text


def test_every_tools_data_equals_the_stock_servers(client: httpx.Client, stock: httpx.Client, run: str) -> None:
    differences = []
    tools = stock.get(f"{API}run_tools", params={"run": run}).json()
    more = ["pod_viewer", "inference_profile", "perf_counters", "utilization_viewer", "smart_suggestion"]
    for tool in [*tools, *(tool for tool in more if tool not in tools)]:
        hosts = [item["hostname"] for item in stock.get(f"{API}hosts", params={"run": run, "tag": tool}).json()]
        for host in hosts[:2]:
            for extra in _variants(stock, run, tool, host):
                query = {"run": run, "tag": tool, "host": host, **extra}
                difference = _compare(client, stock, tool, query)
                if difference:
                    differences.append(f"{query}: {difference}")
    assert not differences, "\n".join(differences)


def test_a_trace_of_all_hosts_equals_the_stock_servers(client: httpx.Client, stock: httpx.Client, run: str) -> None:
    hosts = [item["hostname"] for item in stock.get(f"{API}hosts", params={"run": run, "tag": "trace_viewer@"}).json()]
    query = {"run": run, "tag": "trace_viewer@", "hosts": ",".join(hosts), "resolution": "3640"}
    assert _compare(client, stock, "trace_viewer@", query) is None


def test_csv_equals_the_stock_servers(client: httpx.Client, stock: httpx.Client) -> None:
    for run in ("cpu/one", "cpu/two"):
        for tool in ("hlo_stats", "kernel_stats"):
            query = {"run": run, "tag": tool, "tqx": "out:csv;"}
            ours, theirs = (c.get(f"{API}data_csv", params=query) for c in (client, stock))
            assert ours.status_code == theirs.status_code == 200
            assert ours.headers["content-disposition"] == theirs.headers["content-disposition"]
            assert sorted(ours.text.splitlines()) == sorted(theirs.text.splitlines())


def _variants(stock: httpx.Client, run: str, tool: str, host: str) -> list[dict[str, str]]:
    if tool not in ("graph_viewer", "memory_viewer"):
        return EXTRA.get(tool, [{}])
    modules = stock.get(f"{API}module_list", params={"run": run, "tag": tool}).text.split(",")
    variants = []
    for module in [module for module in modules if module][:3]:
        named = {"module_name": module}
        if tool == "memory_viewer":
            variants += [{**named, "memory_space": "0"}, {**named, "view_memory_allocation_timeline": "true"}]
            continue
        variants += [{**named, "type": kind} for kind in ("short_txt", "long_txt")]
        text = stock.get(
            f"{API}data", params={"run": run, "tag": tool, "host": host, **named, "type": "short_txt"}
        ).text
        node = next(
            (line.split("ROOT ")[1].split(" ")[0].lstrip("%") for line in text.splitlines() if "ROOT " in line), ""
        )
        graph: dict[str, Any] = {**named, "node_name": node, "type": "graph", "format": "html", "graph_width": "3"}
        variants += [graph, {**named, "node_name": node, "type": "adj_nodes"}]
    return variants


def _compare(client: httpx.Client, stock: httpx.Client, tool: str, query: dict[str, str]) -> str | None:
    ours = client.get(f"{API}data", params=query)
    answered = dict(canonical_parameters(TOOLS[tool], query)) if tool == "trace_viewer@" else {}
    theirs = stock.get(f"{API}data", params={**query, **answered, "use_saved_result": "false"})
    if ours.status_code != theirs.status_code:
        return f"status {ours.status_code}, not {theirs.status_code}: {ours.text[:200]} / {theirs.text[:200]}"
    if theirs.status_code != 200:
        return None
    if ours.headers["content-type"].split(";")[0] != theirs.headers["content-type"].split(";")[0]:
        return f"type {ours.headers['content-type']}, not {theirs.headers['content-type']}"
    return same_answer(tool, ours.content, theirs.content)
