"""The whole service on real buckets: GCS and S3 servers, behind proxies that do what networks and stores do."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped, unused-ignore]
import httpx
import pytest
from moto.server import ThreadedMotoServer

from benchmarks.gcs_emulator import GcsEmulator
from benchmarks.same_answer import same_answer
from hosting.demo_check import Answer, check_session
from hosting.service_process import ServiceProcess
from tests.faulty_proxy import FaultyProxy
from tests.session_folder import add_session

API = "data/plugin/profile/"
INTERVAL = 1.0
"""Seconds between passes over a bucket here; 30 by default."""
SOON = 20.0
"""Seconds until a pass has seen something, on a busy machine and after failures, which make passes rarer."""
ALWAYS = 1_000_000
FOREIGN = 1_200
RUNS = ("forbidden", "down", "dropped", "stalled", "damaged", "corrupt", "deleted", "replaced", "changing")


@dataclass
class Buckets:
    """The two GCS buckets and the S3 bucket behind the service, and what tests have put there."""

    gcs: GcsEmulator
    s3: Any
    keys: dict[str, set[str]] = field(default_factory=dict)

    def create(self, bucket: str) -> None:
        self.gcs.create_bucket(bucket)
        self.keys[bucket] = set()

    def upload(self, bucket: str, key: str, data: bytes) -> None:
        self.gcs.upload(bucket, key, data)
        self.keys[bucket].add(key)

    def delete(self, bucket: str, key: str) -> None:
        self.gcs.delete(bucket, key)
        self.keys[bucket].discard(key)


@dataclass(frozen=True)
class World:
    """Everything a test works with."""

    client: httpx.Client
    buckets: Buckets
    proxy: FaultyProxy
    s3_proxy: FaultyProxy
    profiles: tuple[bytes, bytes]
    log: Path

    def runs(self) -> list[str]:
        names: list[str] = self.client.get(f"{API}runs").raise_for_status().json()
        return names

    def roots(self) -> dict[str, dict[str, Any]]:
        found = self.client.get("v1/sessions").raise_for_status().json()["roots"]
        return {root["name"]: root for root in found}

    def statuses(self) -> dict[str, str]:
        return {name: root["status"] for name, root in self.roots().items()}

    def made(self, run: str) -> int:
        """How often a result of a session was made, by the service's log."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return sum(line["message"] == "made a result" and f"'{run}'" in line["work"] for line in lines)

    def assert_same(self, answer: httpx.Response, run: str, tool: str = "trace_viewer@") -> None:
        """The answer is that of a session in the local folder."""
        assert answer.status_code == 200, answer.text
        assert same_answer(tool, answer.content, self.open(run, tool).content) is None

    def open(self, run: str, tool: str = "trace_viewer@", **more: str) -> httpx.Response:
        return self.client.get(f"{API}data", params={"run": run, "tag": tool, **more})


def until(condition: Callable[[], object], what: str, within: float = SOON) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {within:g} s"
        time.sleep(0.1)


def key_of(run: str, host: str = "host") -> str:
    return f"team/{run}/plugins/profile/s1/{host}.xplane.pb"


@pytest.fixture(scope="module")
def profiles(cpu_session: Path) -> tuple[bytes, bytes]:
    first, second = sorted(cpu_session.glob("*.xplane.pb"))
    return first.read_bytes(), second.read_bytes()


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    yield f"http://{host}:{port}"
    moto.stop()


@pytest.fixture(scope="module")
def buckets(cpu_session: Path, profiles: tuple[bytes, bytes], s3_server: str) -> Iterator[Buckets]:
    """GCS: `logs` with sessions under a prefix and `shared` with sessions at its root, one among many other objects.
    S3: one session under a prefix."""
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    s3 = boto3.client("s3", endpoint_url=s3_server, **keys)
    s3.create_bucket(Bucket="s3logs")
    with GcsEmulator() as gcs:
        buckets = Buckets(gcs, s3)
        for path in sorted(cpu_session.iterdir()):
            s3.upload_file(str(path), "s3logs", f"team/demo/plugins/profile/s1/{path.name}")
        checkpoints = [f"checkpoints/{i:04}" for i in range(FOREIGN)]
        gcs.preload("shared", checkpoints)
        buckets.keys["shared"] = set(checkpoints)
        buckets.create("logs")
        for path in sorted(cpu_session.iterdir()):
            buckets.upload("logs", f"team/demo/plugins/profile/s1/{path.name}", path.read_bytes())
        for run in RUNS:
            buckets.upload("logs", key_of(run), profiles[0])
        for host, profile in zip(("host-0", "host-1"), profiles, strict=True):
            buckets.upload("logs", key_of("pair", host), profile)
        # Outside the log root's prefix.
        buckets.upload("logs", "other/run/plugins/profile/s1/host.xplane.pb", profiles[0])
        for key in ("plugins/profile/s1/host.xplane.pb", "deep/down/run/plugins/profile/s1/host.xplane.pb"):
            buckets.upload("shared", key, profiles[0])
        yield buckets


@pytest.fixture(scope="module")
def world(
    buckets: Buckets,
    s3_server: str,
    profiles: tuple[bytes, bytes],
    cpu_session: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[World]:
    """One service with two shards over all buckets, and over a local folder with the same session and another."""
    folder = tmp_path_factory.mktemp("buckets")
    first, second = sorted(cpu_session.glob("*.xplane.pb"))
    add_session(folder / "logs", "demo", "s1", {"demo-host-0": first, "demo-host-1": second})
    add_session(folder / "logs", "first", "s1", {"host": first})
    add_session(folder / "logs", "second", "s1", {"host": second})
    add_session(folder / "logs", "pair", "s1", {"host-0": second, "host-1": second})
    arguments = ["--port", "0", "--state-dir", str(folder / "state"), "--shards", "2", "--prewarm", "off"]
    arguments += ["--bucket-interval", str(INTERVAL)]
    for root in ("good=gs://logs/team", "root=gs://shared", "s3=s3://s3logs/team/", "missing=gs://no-such-bucket"):
        arguments += ["--logdir", root]
    arguments += ["--logdir", f"local={folder / 'logs'}"]
    service = ServiceProcess(arguments, log=folder / "service.log")
    with FaultyProxy(buckets.gcs.url) as proxy, FaultyProxy(s3_server) as s3_proxy:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("STORAGE_EMULATOR_HOST", proxy.url)
            environment.setenv("AWS_ENDPOINT_URL", s3_proxy.url)
            environment.setenv("AWS_ACCESS_KEY_ID", "a")
            environment.setenv("AWS_SECRET_ACCESS_KEY", "b")
            environment.setenv("AWS_REGION", "us-east-1")
            service.__enter__()
        try:
            with httpx.Client(base_url=service.address, timeout=60) as client:
                yield World(client, buckets, proxy, s3_proxy, profiles, folder / "state/logs/xprof-hosting.jsonl")
        finally:
            service.stop()


@pytest.fixture(autouse=True)
def good_health(world: World) -> Iterator[None]:
    """Stores in good health before each test; and nothing was written to them by the service when it ends."""
    for proxy in (world.proxy, world.s3_proxy):
        proxy.heal()
    until(lambda: set(world.statuses().values()) <= {"ok", "missing"}, "all roots being listed again")
    yield
    for proxy in (world.proxy, world.s3_proxy):
        assert proxy.counts["write"] == 0
        proxy.heal()


@pytest.fixture(scope="module")
def opened(world: World) -> tuple[list[Answer], Counter[str]]:
    """Everything that the session of two hosts in GCS has to show, and how often each object was fetched for it."""
    seen = len(world.proxy.requests)
    answers = check_session(str(world.client.base_url), "good/demo/s1")
    fetched = Counter(request.target for request in world.proxy.requests[seen:] if request.kind == "get")
    return answers, fetched


def test_the_sessions_of_all_roots_are_listed_with_the_roots_name_first(world: World) -> None:
    expected = [f"good/{run}/s1" for run in ("demo", "pair", *RUNS)]
    expected += [f"local/{run}/s1" for run in ("demo", "first", "second", "pair")]
    expected += ["root/s1", "root/deep/down/run/s1", "s3/demo/s1"]
    assert world.runs() == sorted(expected, reverse=True)


def test_every_tool_of_a_session_in_gcs_answers(opened: tuple[list[Answer], Counter[str]]) -> None:
    answers, _ = opened
    assert [(answer.tool, answer.host, answer.problem) for answer in answers if answer.problem] == []
    assert {"overview_page", "trace_viewer@", "memory_profile", "op_profile"} <= {answer.tool for answer in answers}


def test_each_object_is_fetched_once_for_all_tools_and_both_shards(opened: tuple[list[Answer], Counter[str]]) -> None:
    _, fetched = opened
    assert len(fetched) == 2
    assert set(fetched.values()) == {1}, fetched


def test_the_answers_are_those_of_the_same_files_in_a_folder(
    world: World, opened: tuple[list[Answer], Counter[str]]
) -> None:
    answers, _ = opened
    others = {(a.tool, a.host, i): a for i, a in enumerate(check_session(str(world.client.base_url), "local/demo/s1"))}
    ours = {(a.tool, a.host, i): a for i, a in enumerate(answers)}
    assert ours.keys() == others.keys()
    for (tool, host, i), answer in ours.items():
        assert same_answer(tool, answer.body, others[tool, host, i].body) is None, (tool, host)


def test_every_tool_of_a_session_in_s3_answers(world: World) -> None:
    answers = check_session(str(world.client.base_url), "s3/demo/s1")
    assert [(answer.tool, answer.host, answer.problem) for answer in answers if answer.problem] == []
    assert world.s3_proxy.counts["get"] == 2


def test_a_new_session_appears_and_a_deleted_one_goes_without_a_restart(world: World) -> None:
    world.buckets.upload("logs", key_of("new"), world.profiles[1])
    until(lambda: "good/new/s1" in world.runs(), "the new session's appearing")
    world.assert_same(world.open("good/new/s1"), "local/second/s1")
    world.buckets.delete("logs", key_of("new"))
    until(lambda: "good/new/s1" not in world.runs(), "the deleted session's going")
    assert world.open("good/new/s1").status_code == 404


def test_a_pass_costs_a_list_request_per_thousand_objects_and_one_more_at_most(world: World) -> None:
    before = {name: root["listed_at"] for name, root in world.roots().items()}
    assert all(before.values())
    window = 4.0
    started = time.monotonic()
    world.proxy.heal()
    world.s3_proxy.heal()
    time.sleep(window)
    lists = Counter(r.target.split("?")[0] for r in world.proxy.requests if r.kind == "list")
    s3_lists = world.s3_proxy.counts["list"]
    passes = math.ceil((time.monotonic() - started) / INTERVAL) + 1
    for bucket, objects in (("logs", len(RUNS) + 4), ("shared", FOREIGN + 2), ("no-such-bucket", 0)):
        count = lists[f"/storage/v1/b/{bucket}/o"]
        assert 0 < count <= passes * (math.ceil(objects / 1000) + 1), (bucket, count)
    assert 0 < s3_lists <= passes * 2
    assert world.roots()["root"]["list_requests"] == math.ceil((FOREIGN + 2) / 1000)
    # And nothing but lists.
    assert {request.kind for request in world.proxy.requests} == {"list"}


def test_each_root_says_what_is_the_matter_with_it(world: World) -> None:
    roots = world.roots()
    assert {name: root["status"] for name, root in roots.items()} == {
        "good": "ok",
        "root": "ok",
        "s3": "ok",
        "missing": "missing",
        "local": "ok",
    }
    assert "no-such-bucket does not exist" in roots["missing"]["message"]
    assert f"other files: {FOREIGN:,}" in roots["root"]["message"]


def test_a_bucket_that_refuses_us_is_forbidden_and_comes_back(world: World) -> None:
    world.proxy.status(403, "list", times=ALWAYS)
    until(lambda: world.statuses()["good"] == "forbidden", "the refusal's showing")
    message = world.roots()["good"]["message"]
    assert "gs://logs/team is denied" in message
    assert "roles/storage.objectViewer" in message
    assert world.statuses()["s3"] == "ok"
    assert not [name for name in world.runs() if name.startswith("good/")]
    world.proxy.heal()
    until(lambda: "good/demo/s1" in world.runs(), "the sessions' coming back")


@pytest.mark.parametrize("how", ["answers 503", "drops connections"])
def test_a_bucket_that_is_out_of_reach_keeps_its_sessions_and_comes_back(world: World, how: str) -> None:
    before = world.runs()
    if how == "answers 503":
        world.proxy.status(503, "list", times=ALWAYS)
        world.s3_proxy.status(503, "list", times=ALWAYS)
    else:
        world.proxy.down = world.s3_proxy.down = True
    wanted = dict.fromkeys(("good", "root", "s3", "missing"), "unreachable") | {"local": "ok"}
    until(lambda: world.statuses() == wanted, "the outage's showing")
    assert world.runs() == before
    roots = world.roots()
    assert f"Shown meanwhile: {len(RUNS) + 2} sessions" in roots["good"]["message"]
    assert (world.proxy.url if how != "answers 503" else "503") in roots["good"]["message"]
    for proxy in (world.proxy, world.s3_proxy):
        proxy.heal()
    until(lambda: world.statuses()["good"] == "ok", "the end of the outage's showing")
    assert world.runs() == before


def test_a_connection_that_breaks_in_the_middle_is_resumed_where_it_broke(world: World) -> None:
    world.proxy.drop("get", after=300_000)
    world.assert_same(world.open("good/dropped/s1"), "local/first/s1")
    assert [request.range is None for request in world.proxy.requests if request.kind == "get"] == [True, False]


def test_a_connection_that_stalls_is_resumed_and_holds_up_nobody_else(world: World) -> None:
    fault = world.proxy.stall("get", after=300_000)
    with ThreadPoolExecutor(1) as pool:
        stalled = pool.submit(world.open, "good/stalled/s1")
        until(lambda: fault.struck, "the download's begin")
        # Not seen before, so made now, on whichever shard.
        for resolution in range(501, 505):
            answer = world.open("local/demo/s1", resolution=str(resolution), host=f"demo-host-{resolution % 2}")
            assert answer.status_code == 200
        assert world.open("root/s1").status_code == 200
        assert not stalled.done()
        world.assert_same(stalled.result(60), "local/first/s1")
    ranges = [r.range is None for r in world.proxy.requests if r.kind == "get" and "stalled" in r.target]
    assert ranges == [True, False]


def test_bytes_damaged_on_the_way_are_fetched_again(world: World) -> None:
    world.proxy.corrupt("get", at=200_000)
    world.assert_same(world.open("good/damaged/s1"), "local/first/s1")
    assert [request.range for request in world.proxy.requests if request.kind == "get"] == [None, None]


def test_bytes_damaged_again_and_again_are_a_503_and_nothing_of_them_is_used(world: World) -> None:
    world.proxy.corrupt("get", at=200_000, times=2)
    answer = world.open("good/corrupt/s1")
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert f"gs://logs/{key_of('corrupt')} arrived damaged" in answer.text
    world.assert_same(world.open("good/corrupt/s1"), "local/first/s1")


def test_an_object_that_was_deleted_after_it_was_listed_is_a_404_that_names_it(world: World) -> None:
    world.proxy.before(lambda: world.buckets.delete("logs", key_of("deleted")), "get")
    answer = world.open("good/deleted/s1")
    assert answer.status_code == 404
    assert f"gs://logs/{key_of('deleted')}" in answer.text
    world.buckets.upload("logs", key_of("deleted"), world.profiles[0])
    until(lambda: world.open("good/deleted/s1").status_code == 200, "the object's return")


def test_an_object_that_was_replaced_after_it_was_listed_is_parsed_afresh_and_once(world: World) -> None:
    # No pass finds the new object meanwhile: the service has the old one's listing for all requests.
    world.proxy.status(503, "list", times=ALWAYS)
    until(lambda: world.statuses()["good"] == "unreachable", "the end of listings")
    world.proxy.before(lambda: world.buckets.upload("logs", key_of("replaced"), world.profiles[1]), "get")
    answer = world.open("good/replaced/s1")
    world.assert_same(answer, "local/second/s1")
    again = world.open("good/replaced/s1")
    assert (again.status_code, again.headers["etag"], again.content) == (200, answer.headers["etag"], answer.content)
    assert world.made("good/replaced/s1") == 1


def test_a_host_that_was_replaced_after_it_was_listed_is_fresh_in_what_hosts_show_together(world: World) -> None:
    new = world.profiles[1]
    world.proxy.before(lambda: world.buckets.upload("logs", key_of("pair", "host-0"), new), "get")
    world.assert_same(world.open("good/pair/s1", "overview_page"), "local/pair/s1", "overview_page")


def test_an_object_that_is_replaced_once_opened_is_another_answer_with_another_etag_soon(world: World) -> None:
    old = world.open("good/changing/s1")
    world.assert_same(old, "local/first/s1")
    world.buckets.upload("logs", key_of("changing"), world.profiles[1])
    until(lambda: world.open("good/changing/s1").headers["etag"] != old.headers["etag"], "the change's showing")
    world.assert_same(world.open("good/changing/s1"), "local/second/s1")


def test_an_object_that_we_may_not_read_is_a_403_and_nothing_of_it_is_kept(world: World) -> None:
    world.proxy.status(403, "get", times=ALWAYS)
    answer = world.open("good/forbidden/s1")
    assert answer.status_code == 403
    assert f"gs://logs/{key_of('forbidden')}" in answer.text
    world.proxy.heal()
    assert world.open("good/forbidden/s1").status_code == 200


def test_a_store_that_is_down_is_a_503_that_says_when_to_retry_and_then_works(world: World) -> None:
    world.proxy.down = True
    answer = world.open("good/down/s1")
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert f"gs://logs/{key_of('down')}" in answer.text
    world.proxy.heal()
    assert world.open("good/down/s1").status_code == 200


def test_nothing_is_ever_written_to_the_buckets(world: World) -> None:
    for tool in ("overview_page", "trace_viewer@", "memory_viewer"):
        world.open("good/demo/s1", tool)
    for bucket, keys in world.buckets.keys.items():
        assert world.buckets.gcs.keys(bucket) == sorted(keys)
    listed = world.buckets.s3.list_objects_v2(Bucket="s3logs")["Contents"]
    assert [item["Key"] for item in listed] == [f"team/demo/plugins/profile/s1/demo-host-{i}.xplane.pb" for i in (0, 1)]
