"""How answers travel: compressed once, negotiated, revalidated, never empty."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
import zstandard

from hosting.service_process import ServiceProcess

API = "data/plugin/profile/"
OVERVIEW = {"run": "cpu/two", "tag": "overview_page", "host": "ALL_HOSTS"}


def raw(
    client: httpx.Client, path: str, accept: str, query: dict[str, str] | None = None, **headers: str
) -> tuple[httpx.Response, bytes]:
    """An answer with its body as it came."""
    sent = {"accept-encoding": accept, **headers}
    with client.stream("GET", path, params=query, headers=sent) as answer:
        return answer, b"".join(answer.iter_raw())


@pytest.mark.parametrize("path", ["data", "bundle"])
def test_content_is_negotiated_and_says_the_same_in_every_encoding(client: httpx.Client, path: str) -> None:
    address, query = (f"{API}data", OVERVIEW) if path == "data" else (f"{API}bundle.js", None)
    plain, body = raw(client, address, "identity", query)
    assert "content-encoding" not in plain.headers
    assert len(body) > 1000
    zipped, gzip_body = raw(client, address, "gzip, deflate", query)
    assert zipped.headers["content-encoding"] == "gzip"
    packed, zstd_body = raw(client, address, "gzip, deflate, br, zstd", query)
    assert packed.headers["content-encoding"] == "zstd"
    assert len(zstd_body) < len(body)
    assert zstandard.ZstdDecompressor().decompressobj().decompress(zstd_body) == body
    assert httpx.Response(200, headers={"content-encoding": "gzip"}, content=gzip_body).content == body
    assert len({answer.headers["etag"] for answer in (plain, zipped, packed)}) == 3
    assert all("accept-encoding" in answer.headers["vary"].lower() for answer in (plain, zipped, packed))


def test_tool_data_is_revalidated_by_its_etag(client: httpx.Client) -> None:
    answer, body = raw(client, f"{API}data", "gzip", OVERVIEW)
    assert body
    again, nothing = raw(client, f"{API}data", "gzip", OVERVIEW, **{"if-none-match": answer.headers["etag"]})
    assert (again.status_code, nothing) == (304, b"")
    assert again.headers["etag"] == answer.headers["etag"]
    other, body = raw(client, f"{API}data", "gzip", OVERVIEW, **{"if-none-match": '"something-else"'})
    assert other.status_code == 200
    assert body


def test_assets_are_kept_long_under_a_version_and_revalidated_without(client: httpx.Client) -> None:
    document = client.get(f"{API}")
    assert document.headers["cache-control"] == "no-cache"
    address = document.text.split('src="zone.js')[1].split('"')[0]
    assert address.startswith("?v=")
    versioned = client.get(f"{API}zone.js{address}")
    assert "immutable" in versioned.headers["cache-control"]
    bare = client.get("zone.js")
    assert bare.status_code == 200
    assert "immutable" not in bare.headers["cache-control"]
    assert client.get("zone.js", headers={"if-none-match": bare.headers["etag"]}).status_code == 304


def test_every_route_of_the_ui_answers(client: httpx.Client) -> None:
    for page in ("", API.rstrip("/"), API, f"{API}overview_page", f"{API}trace_viewer@", "local"):
        answer = client.get(page)
        assert answer.status_code == 200, page
        assert "<app></app>" in answer.text
    assert client.get(f"{API}version").text == "2.24.2"
    assert client.get(f"{API}config").json() == {
        "hideCaptureProfileButton": True,
        "srcPathPrefix": None,
        "enableTabNameLabel": False,
    }
    assert client.get(f"{API}no_such_file.js").status_code == 404
    assert client.get("favicon.ico").status_code == 200


def test_duplicate_slashes_are_collapsed(client: httpx.Client, service: ServiceProcess) -> None:
    answer = client.get(f"{service.address}//data/plugin//profile/runs")
    assert answer.status_code == 200
    assert "cpu/two" in answer.json()


def test_answers_carry_a_request_id_of_the_clients_choice_or_ours(client: httpx.Client) -> None:
    assert client.get("healthz", headers={"x-request-id": "abc-123"}).headers["x-request-id"] == "abc-123"
    assert len(client.get("healthz").headers["x-request-id"]) >= 32


def test_a_request_id_crosses_gateway_shard_and_engine_in_the_logs(client: httpx.Client, logs: Path) -> None:
    query = {"run": "cpu/two", "tag": "trace_viewer@", "host": "demo-host-0", "resolution": "1234"}
    assert client.get(f"{API}data", params=query, headers={"x-request-id": "follow-me"}).status_code == 200
    lines = [json.loads(line) for line in logs.read_text().splitlines()]
    roles = {line["role"] for line in lines if line["request_id"] == "follow-me"}
    assert roles == {"gateway", "shard", "engine"}


def test_ready_only_after_a_self_test_and_metrics_count_what_was_done(client: httpx.Client) -> None:
    assert client.get("readyz").text == "ready\n"
    client.get(f"{API}data", params=OVERVIEW)
    text = client.get("metrics").text
    for name in (
        "xprof_hosting_requests_total",
        "xprof_hosting_results_total",
        "xprof_hosting_parses_in_flight",
        "xprof_hosting_parse_seconds_bucket",
        "xprof_hosting_parse_bytes_total",
        "xprof_hosting_downloads_total",
        "xprof_hosting_sessions",
    ):
        assert f"\n{name}" in text or text.startswith(name), name
    replicas = {line.split('replica="')[1].split('"')[0] for line in text.splitlines() if 'replica="' in line}
    assert sorted(name.split("-")[0] for name in replicas) == ["gateway", "gateway", "shard", "shard"]
    hits = [line for line in text.splitlines() if "results_total" in line and 'outcome="hit"' in line]
    assert any(float(line.split()[-1]) > 0 for line in hits)


def test_the_openapi_document_describes_v1(client: httpx.Client) -> None:
    assert "/v1/sessions" in client.get("openapi.json").json()["paths"]
    listed = client.get("v1/sessions", params={"q": "cpu/"}).json()
    assert [session["name"] for session in listed["sessions"]] == ["cpu/two", "cpu/one"]
    assert [host["host"] for host in listed["sessions"][0]["hosts"]] == ["demo-host-0", "demo-host-1"]
    assert client.get("v1/sessions", params={"limit": "x"}).status_code == 400
    missing = client.get("v1/sessions/cpu/nowhere")
    assert missing.status_code == 404
    assert missing.json()["error"]["request_id"] == missing.headers["x-request-id"]


def test_paths_restrict_what_is_seen_to_one_folder(client: httpx.Client, log_root: Path) -> None:
    session = log_root / "cpu/plugins/profile/two"
    assert client.get(f"{API}runs", params={"session_path": str(session)}).json() == ["two"]
    assert client.get(f"{API}runs", params={"run_path": str(session.parent)}).json() == ["two", "one"]
    query = {"session_path": str(session), "run": "two", "tag": "overview_page"}
    assert client.get(f"{API}data", params=query).status_code == 200
    assert client.get(f"{API}data", params={**query, "run": "cpu/one"}).status_code == 404
    assert client.get("", params={"session_path": str(session)}).status_code == 200
