"""What bad input gets: the right status, a sentence that names the thing, and a service that goes on."""

from __future__ import annotations

import json
import time
from pathlib import Path

import httpx
import pytest

API = "data/plugin/profile/"


@pytest.mark.parametrize(
    ("run", "status", "words"),
    [
        ("bad/empty", 422, ["host.xplane.pb", "empty"]),
        ("bad/text", 422, ["host.xplane.pb", "JSON"]),
        ("bad/cut", 422, ["host.xplane.pb", "missing"]),
        ("bad/huge", 413, ["2 GiB"]),
    ],
)
def test_a_file_that_is_no_whole_profile_is_named_with_what_is_wrong(
    client: httpx.Client, run: str, status: int, words: list[str]
) -> None:
    for query in (
        {"run": run, "tag": "overview_page"},
        {"run": run, "tag": "trace_viewer@", "host": "host"},
        {"run": run, "tag": "memory_profile"},
    ):
        answer = client.get(f"{API}data", params=query)
        assert answer.status_code == status, answer.text
        for word in words:
            assert word in answer.text
    answer = client.get(f"{API}run_tools", params={"run": run})
    assert answer.status_code == status
    # Nothing of it is kept as truth: the same again.
    assert client.get(f"{API}data", params={"run": run, "tag": "overview_page"}).status_code == status


def test_good_hosts_work_beside_a_bad_one_and_all_hosts_says_who_is_left_out(client: httpx.Client) -> None:
    run = "bad/mixed"
    tools = client.get(f"{API}run_tools", params={"run": run})
    assert tools.status_code == 200
    assert "overview_page" in tools.json()
    assert list(json.loads(tools.headers["x-xprof-hosting-left-out"])) == ["truncated"]

    overview = client.get(f"{API}data", params={"run": run, "tag": "overview_page", "host": "ALL_HOSTS"})
    assert overview.status_code == 200
    assert list(json.loads(overview.headers["x-xprof-hosting-left-out"])) == ["truncated"]
    assert "Host truncated is left out of this page" in overview.text
    # All else is as if the bad file were not there.
    pair = client.get(f"{API}data", params={"run": "bad/pair", "tag": "overview_page", "host": "ALL_HOSTS"}).json()
    assert overview.json()[:-1] == pair[:-1]

    one = client.get(f"{API}data", params={"run": run, "tag": "trace_viewer@", "host": "good-0"})
    assert one.status_code == 200
    assert "x-xprof-hosting-left-out" not in one.headers
    bad = client.get(f"{API}data", params={"run": run, "tag": "trace_viewer@", "host": "truncated"})
    assert bad.status_code == 422
    assert "truncated.xplane.pb" in bad.text

    shown = client.get(f"v1/sessions/{run}").json()
    assert list(shown["left_out"]) == ["truncated"]


@pytest.mark.parametrize(
    ("path", "query", "status", "word"),
    [
        ("data", {"run": "cpu/two", "tag": "no_such_tool"}, 404, "no_such_tool"),
        ("data", {"run": "cpu/two"}, 400, "tag"),
        ("data", {"tag": "overview_page"}, 400, "run"),
        ("data", {"run": "cpu/nowhere", "tag": "overview_page"}, 404, "cpu/nowhere"),
        ("data", {"run": "cpu/two", "tag": "trace_viewer@", "host": "stranger"}, 404, "stranger"),
        ("data", {"run": "cpu/two", "tag": "trace_viewer@", "hosts": "demo-host-0,stranger"}, 404, "stranger"),
        ("data", {"run": "cpu/two", "tag": "graph_viewer", "module_name": "no_such_module"}, 404, "no_such_module"),
        ("data", {"run": "cpu/two", "tag": "graph_viewer"}, 400, "module_name"),
        ("data", {"run": "cpu/two", "tag": "trace_viewer@", "resolution": "many"}, 400, "resolution"),
        ("data", {"run": "cpu/two", "tag": "trace_viewer@", "start_time_ms": "nan"}, 400, "start_time_ms"),
        ("hosts", {"run": "cpu/nowhere", "tag": "overview_page"}, 404, "cpu/nowhere"),
        ("run_tools", {"run": "cpu/nowhere"}, 404, "cpu/nowhere"),
        ("run_tools", {}, 400, "run"),
        ("module_list", {"run": "cpu/nowhere"}, 404, "cpu/nowhere"),
        ("data_csv", {"run": "cpu/two", "tag": "trace_viewer@"}, 400, "CSV"),
        ("runs", {"session_path": "http://example.org/x"}, 400, "http"),
        ("runs", {"session_path": "gs://elsewhere/plugins/profile/x"}, 404, "gs://elsewhere"),
        ("runs", {"session_path": "relative/../../etc"}, 404, "etc"),
        ("runs", {"run_path": "/"}, 404, "/"),
    ],
)
def test_names_that_do_not_exist_or_make_no_sense_are_named(
    client: httpx.Client, path: str, query: dict[str, str], status: int, word: str
) -> None:
    answer = client.get(f"{API}{path}", params=query)
    assert answer.status_code == status, answer.text
    assert word in answer.text
    assert answer.headers["x-request-id"]


@pytest.fixture
def outside(tmp_path: Path, cpu_session: Path) -> Path:
    """A session beside the log root, with an HLO file whose module somebody may try to reach."""
    folder = tmp_path / "outside" / "plugins" / "profile" / "secret"
    folder.mkdir(parents=True)
    source = next(cpu_session.glob("*.xplane.pb"))
    (folder / "host.xplane.pb").write_bytes(source.read_bytes())
    (folder / "secret.hlo_proto.pb").write_bytes(b"secret")
    return folder


def test_no_parameter_reads_outside_the_log_roots(client: httpx.Client, log_root: Path, outside: Path) -> None:
    up = "../" * 12
    away = [str(outside), f"{up}{outside}", f"{log_root}/../{outside.name}", f"..%2f..{outside}", f"file://{outside}"]
    for path in away:
        for name in ("session_path", "run_path"):
            assert client.get(f"{API}runs", params={name: path}).status_code in (400, 404), path
        for query in (
            {"run": path, "tag": "overview_page"},
            {"run": "cpu/two", "tag": "overview_page", "host": path},
            {"run": "cpu/two", "tag": "trace_viewer@", "hosts": path},
            {"run": "cpu/two", "tag": "graph_viewer", "module_name": f"{path}/secret", "type": "short_txt"},
            {"run": "cpu/two", "tag": "memory_viewer", "module_name": f"{path}/secret"},
            {"run": "cpu/two", "tag": "memory_viewer", "program_id": f"{path}/secret"},
            {"run": "cpu/two", "tag": "perf_counters", "names_only": "1", "device_type": path},
            {"run": "cpu/two", "tag": f"{path}/secret"},
        ):
            answer = client.get(f"{API}data", params=query)
            assert answer.status_code in (400, 404), (query, answer.status_code, answer.text[:200])
    for path in (
        "..%2f..%2f..%2fetc%2fpasswd",
        "%2e%2e/%2e%2e/etc/passwd",
        "%252e%252e%252fetc%252fpasswd",
        "/etc/passwd",
    ):
        answer = client.get(f"{API}{path}")
        assert "root:" not in answer.text


def test_what_takes_a_listed_files_place_is_not_followed_and_not_a_500(
    client: httpx.Client, log_root: Path, outside: Path, cpu_session: Path
) -> None:
    folder = log_root / "swapped" / "plugins" / "profile" / "now"
    folder.mkdir(parents=True)
    target = folder / "host.xplane.pb"
    source = next(cpu_session.glob("*.xplane.pb"))
    query = {"run": "swapped/now", "tag": "op_profile", "host": "host"}
    target.write_bytes(source.read_bytes())
    deadline = time.monotonic() + 10
    while client.get(f"{API}data", params=query).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    for link in (outside / "host.xplane.pb", Path("/etc/passwd"), target):
        target.unlink()
        target.symlink_to(link)
        for path, parameters in (("data", query), ("run_tools", query), ("module_list", query)):
            answer = client.get(f"{API}{path}", params=parameters)
            assert answer.status_code in (404, 503), (link, answer.text)
        assert client.get("v1/sessions/swapped/now").status_code in (404, 503)
    target.unlink()
    folder.rmdir()
    folder.write_text("a file in the folder's place")
    assert client.get(f"{API}data", params=query).status_code == 404
    folder.unlink()


@pytest.mark.parametrize(
    "more", [{}, {"type": "bogus"}, {"type": "graph", "graph_width": "²"}, {"type": "adj_nodes", "node_name": ""}]
)
def test_a_graph_that_makes_no_sense_is_the_clients_mistake(client: httpx.Client, more: dict[str, str]) -> None:
    module = client.get(f"{API}module_list", params={"run": "cpu/two", "tag": "graph_viewer"}).text.split(",")[0]
    query = {"run": "cpu/two", "tag": "graph_viewer", "host": "demo-host-0", "module_name": module, **more}
    answer = client.get(f"{API}data", params=query)
    assert answer.status_code in (400, 404), answer.text
    assert "scratch" not in answer.text
    trace = {"run": "cpu/two", "tag": "trace_viewer@", "event_name": "x", "unique_id": "zz"}
    assert client.get(f"{API}data", params=trace).status_code == 400


def test_a_deep_link_without_a_host_takes_the_first_by_name(client: httpx.Client) -> None:
    query = {"run": "cpu/two", "tag": "memory_profile"}
    first = client.get(f"{API}data", params={**query, "host": "demo-host-0"})
    assert first.status_code == 200
    for host in ({}, {"host": ""}):
        answer = client.get(f"{API}data", params={**query, **host})
        assert answer.status_code == 200
        assert answer.headers["etag"] == first.headers["etag"]


def test_a_dead_link_is_a_page_that_says_so_and_not_the_first_session(client: httpx.Client) -> None:
    for address, word in (
        ("?run=cpu/nowhere&tag=overview_page", "cpu/nowhere"),
        (f"{API}overview_page?run=cpu/nowhere", "cpu/nowhere"),
        (f"{API}overview_page;run=cpu%2Fnowhere;tag=overview_page", "cpu/nowhere"),
        ("?run=cpu/two&tag=trace_viewer@&host=stranger", "stranger"),
        ("?session_path=/nowhere/at/all", "/nowhere/at/all"),
    ):
        answer = client.get(address)
        assert answer.status_code == 404, address
        assert answer.headers["content-type"].startswith("text/html")
        assert word in answer.text
        assert "does not exist" in answer.text
    assert client.get("?run=cpu/two&tag=overview_page").status_code == 200


def test_capturing_through_a_get_does_nothing(client: httpx.Client) -> None:
    answer = client.get(f"{API}capture_profile", params={"service_addr": "127.0.0.1:1", "duration": "1"})
    assert answer.status_code == 501
    assert "does not capture" in answer.json()["error"]
