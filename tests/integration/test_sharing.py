"""Shards: who parses what, how often, and what happens when one dies."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from benchmarks.generate import generate_session
from hosting.affinity_router import rank_slots
from hosting.service_process import ServiceProcess

API = "data/plugin/profile/"


@pytest.fixture(scope="module")
def large(client: httpx.Client, log_root: Path, cpu_session: Path) -> str:
    """A session of four hosts that takes some seconds to parse; waits until the service lists it."""
    source = next(cpu_session.glob("*.xplane.pb"))
    name = "large/four"
    generate_session(source, log_root / "large", [f"host-{i}" for i in range(4)], 16, "four")
    deadline = time.monotonic() + 10
    while name not in client.get(f"{API}runs").json():
        assert time.monotonic() < deadline, "a new local session must be listed within 10 s"
        time.sleep(0.2)
    return name


def _lines(logs: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in logs.read_text().splitlines()]


def _clients_of_both_gateways(service: ServiceProcess, logs: Path) -> list[httpx.Client]:
    """Clients with one open connection each, some to either gateway."""
    clients: dict[str, httpx.Client] = {}
    deadline = time.monotonic() + 30
    while True:
        identity = uuid.uuid4().hex
        clients[identity] = httpx.Client(base_url=service.address, timeout=120)
        clients[identity].get("healthz", headers={"x-request-id": identity})
        reached = Counter(line["process"] for line in _lines(logs) if line["request_id"] in clients)
        if len(reached) == 2 and min(reached.values()) >= 3:
            return list(clients.values())
        assert time.monotonic() < deadline, f"one gateway takes every connection: {reached}"


def test_one_parse_serves_all_who_ask_at_once_whichever_gateway_they_reach(
    service: ServiceProcess, large: str, logs: Path
) -> None:
    query = {"run": large, "tag": "overview_page"}
    clients = _clients_of_both_gateways(service, logs)
    with ThreadPoolExecutor(len(clients)) as pool:
        answers = list(pool.map(lambda each: each.get(f"{API}data", params=query), clients))
    for each in clients:
        each.close()
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    made = [line for line in _lines(logs) if line["message"] == "made a result" and large in str(line.get("work"))]
    assert len([line for line in made if "overview_page" in str(line["work"])]) == 1
    asked = [line for line in _lines(logs) if line["message"] == "request" and "overview_page" in str(line["query"])]
    assert len({line["process"] for line in asked if "large" in str(line["query"])}) == 2


def test_hosts_are_mapped_on_the_shards_that_own_them(client: httpx.Client, large: str, logs: Path) -> None:
    client.get(f"{API}data", params={"run": large, "tag": "overview_page"})
    maps = [line for line in _lines(logs) if line["message"] == "mapped a host" and large in str(line.get("work"))]
    where = {str(line["work"]).split("host ")[1]: line["process"] for line in maps if "op_stats" in str(line["work"])}
    assert len(where) == 4
    owners = {f"'host-{i}'": rank_slots(f"{large}/host-{i}", ["0", "1"])[0] for i in range(4)}
    # The same owner by hash means the same process, and another owner another one.
    pairs = {(owners[host], process) for host, process in where.items()}
    assert len(pairs) == len(set(owners.values()))


def test_the_same_host_goes_to_the_same_shard(client: httpx.Client, logs: Path) -> None:
    for resolution in range(2001, 2009):
        query = {"run": "cpu/two", "tag": "trace_viewer@", "host": "demo-host-1", "resolution": str(resolution)}
        assert client.get(f"{API}data", params=query).status_code == 200
    wanted = re.compile(r"trace_viewer@ of session 'cpu/two', host 'demo-host-1'")
    processes = Counter(
        line["process"]
        for line in _lines(logs)
        if line["message"] == "made a result" and wanted.fullmatch(str(line["work"]))
    )
    assert len(processes) == 1


def test_a_hot_session_gets_another_shards_help_and_each_result_is_still_made_once(
    client: httpx.Client, large: str, logs: Path
) -> None:
    host = {"run": large, "tag": "trace_viewer@", "host": "host-3"}
    assert client.get(f"{API}data", params=host).status_code == 200
    searches = [{**host, "search_prefix": f"hot-{n}", "resolution": "0"} for n in range(24)]
    with ThreadPoolExecutor(48) as pool:
        answers = list(pool.map(lambda query: client.get(f"{API}data", params=query), searches + searches))
    assert {answer.status_code for answer in answers} == {200}
    metrics = client.get("metrics").text
    delegated = re.findall(r'^xprof_hosting_delegated_total{outcome="made",.*} (\S+)', metrics, re.MULTILINE)
    assert sum(float(count) for count in delegated) > 0
    assert not re.search(r"^xprof_hosting_hot_sessions{.*} [1-9]", metrics, re.MULTILINE), "it must lose them again"
    made = [line for line in _lines(logs) if line["message"] == "made a result" and "'host-3'" in str(line["work"])]
    # One for the whole trace, and one for each search.
    assert len(made) == 25
    assert len({line["process"] for line in made}) == 2
    conversions = [line for line in made if float(str(line["engine_seconds"])) > 1.0]
    assert len(conversions) <= 1, "the helper must take the conversion over, not make it again"


def test_the_plan_names_sizes_owners_and_reasons(client: httpx.Client, large: str) -> None:
    plan = client.get(f"v1/sessions/{large}", params={"view": "plan"}).json()
    assert plan["split"] is True
    assert "10 MiB" in plan["reason"]
    assert [host["host"] for host in plan["hosts"]] == [f"host-{n}" for n in range(4)]
    assert plan["bytes"] == sum(host["bytes"] for host in plan["hosts"])
    owners = [rank_slots(f"{large}/host-{n}", ["0", "1"])[0] for n in range(4)]
    assert [host["shard"] for host in plan["hosts"]] == owners
    whole = client.get("v1/sessions/cpu/two", params={"view": "plan"}).json()
    assert whole["split"] is False
    assert client.get(f"v1/sessions/{large}", params={"view": "nothing"}).status_code == 400


def _processes(service: ServiceProcess, word: str) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(service.pid).children(recursive=True):
        try:
            if word in " ".join(process.cmdline()) or word in process.name():
                found.append(process)
        except psutil.Error:
            continue
    return found


def _ask(client: httpx.Client, query: dict[str, str]) -> tuple[threading.Thread, list[httpx.Response]]:
    """Asks for tool data in the background; the answer is in the list once the thread has ended."""
    answers: list[httpx.Response] = []
    request = threading.Thread(target=lambda: answers.append(client.get(f"{API}data", params=query)))
    request.start()
    return request, answers


def _busy(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that are at work now."""
    for process in processes:
        process.cpu_percent()
    time.sleep(0.1)
    return [process for process in processes if process.is_running() and process.cpu_percent() > 20]


def test_a_killed_engine_process_costs_its_request_a_retry_at_most(
    client: httpx.Client, service: ServiceProcess, large: str
) -> None:
    query = {"run": large, "tag": "trace_viewer@", "host": "host-0", "resolution": "3001"}
    request, answers = _ask(client, query)
    killed = 0
    deadline = time.monotonic() + 20
    while not killed and request.is_alive() and time.monotonic() < deadline:
        for child in _busy(_processes(service, "forkserver")):
            child.kill()
            killed += 1
            break
    request.join(60)
    assert killed, "no engine process was seen at work"
    assert answers[0].status_code in (200, 502), answers[0].text
    if answers[0].status_code == 502:
        assert "host-0" in answers[0].text
    assert client.get(f"{API}data", params=query).status_code == 200


def test_a_killed_shard_fails_nothing_and_is_replaced(
    client: httpx.Client, service: ServiceProcess, large: str
) -> None:
    query = {"run": large, "tag": "trace_viewer@", "host": "host-1", "resolution": "3002"}
    request, answers = _ask(client, query)
    time.sleep(0.3)
    shards = _processes(service, "ServeReplica:xprof-hosting:shard")
    assert len(shards) == 2
    for shard in shards[:1]:
        os.kill(shard.pid, signal.SIGKILL)
    request.join(60)
    assert answers[0].status_code == 200, answers[0].text
    other = {"run": large, "tag": "trace_viewer@", "host": "host-2", "resolution": "3003"}
    assert client.get(f"{API}data", params=other).status_code == 200
    deadline = time.monotonic() + 40
    while len(_processes(service, "ServeReplica:xprof-hosting:shard")) < 2:
        assert time.monotonic() < deadline, "the shard was not replaced"
        time.sleep(0.5)


def test_a_shard_that_hangs_is_passed_over(client: httpx.Client, service: ServiceProcess, large: str) -> None:
    host = {"run": large, "tag": "trace_viewer@", "host": "host-0", "resolution": "0"}
    assert client.get(f"{API}data", params={**host, "search_prefix": "before"}).status_code == 200
    answers = {}
    for shard in _processes(service, "ServeReplica:xprof-hosting:shard"):
        # One of the two owns the host.
        shard.suspend()
        try:
            began = time.monotonic()
            answer = client.get(f"{API}data", params={**host, "search_prefix": f"hung-{shard.pid}"})
            answers[shard.pid] = (answer.status_code, time.monotonic() - began)
        finally:
            shard.resume()
        time.sleep(1)
    assert {status for status, _ in answers.values()} == {200}
    assert max(seconds for _, seconds in answers.values()) < 20


def test_a_changed_file_is_another_result_and_a_vanished_one_is_a_404(
    client: httpx.Client, log_root: Path, cpu_session: Path
) -> None:
    first, second = sorted(cpu_session.glob("*.xplane.pb"))
    folder = log_root / "changing" / "plugins" / "profile" / "now"
    folder.mkdir(parents=True)
    target = folder / "host.xplane.pb"
    target.write_bytes(first.read_bytes())
    query = {"run": "changing/now", "tag": "trace_viewer@"}
    deadline = time.monotonic() + 10
    while (answer := client.get(f"{API}data", params=query)).status_code == 404:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert answer.status_code == 200
    target.write_bytes(second.read_bytes())
    changed = client.get(f"{API}data", params=query)
    assert changed.status_code == 200
    assert changed.headers["etag"] != answer.headers["etag"]
    assert changed.content != answer.content
    target.unlink()
    gone = client.get(f"{API}data", params=query)
    assert gone.status_code == 404
    assert "host" in gone.text
    deadline = time.monotonic() + 10
    while "changing/now" in client.get(f"{API}runs").json():
        assert time.monotonic() < deadline, "a vanished session must go within 10 s"
        time.sleep(0.2)


def test_looking_writes_nothing_into_the_log_root(client: httpx.Client, log_root: Path) -> None:
    before = sorted((str(path), path.stat().st_mtime_ns) for path in log_root.rglob("*"))
    for tool in client.get(f"{API}run_tools", params={"run": "cpu/two"}).json():
        query = {"run": "cpu/two", "tag": tool, "resolution": "4321", "group_by": "category"}
        client.get(f"{API}data", params=query)
    client.get(f"{API}module_list", params={"run": "cpu/two"})
    assert sorted((str(path), path.stat().st_mtime_ns) for path in log_root.rglob("*")) == before
