"""What the gateway's application does around and besides its routes, with nothing behind it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from hosting.assets import AssetLibrary
from hosting.gateway_app import create_app
from hosting.replies import RecordReply
from hosting.services import Services
from hosting.settings import Settings
from loaders.engines import tasks
from loaders.errors import ProfileError, StoreUnreachable
from loaders.jobs import ToolJob, plan_job
from loaders.records import RecordHeader, record_bytes
from loaders.result_store import ResultStore
from loaders.sessions import HostFile, RootState, Session, Snapshot
from loaders.stored_file import StoredFile
from loaders.stores import StoreOptions
from loaders.tools import TOOLS, canonical_parameters

API = "/data/plugin/profile"
ROOT = RootState("logs", "gs://bucket/logs", "empty", "", 0, 1, (), {}, 1.0, 0.1)


class Sessions:
    """A catalog of one snapshot, or of an error."""

    def __init__(self, found: Snapshot | Exception) -> None:
        self._found = found

    def latest(self) -> Snapshot | None:
        return self._found if isinstance(self._found, Snapshot) else None

    async def snapshot(self) -> Snapshot:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


class Shards:
    """No shard that answers."""

    async def tool_data(self, job: ToolJob) -> RecordReply:
        raise AssertionError("not to be asked")

    async def self_test(self) -> None:
        raise StoreUnreachable("No shard is running just now.")

    async def metrics(self) -> dict[str, str]:
        return {}


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> AssetLibrary:
    """The UI's files."""
    return AssetLibrary.prepare(tmp_path_factory.mktemp("assets"))


def client(assets: AssetLibrary, tmp_path: Path, found: Snapshot | Exception) -> httpx.AsyncClient:
    """A client of the application over these sessions."""
    results = ResultStore(f"file://{tmp_path}", StoreOptions())
    app = create_app(Services(Settings(), assets, Sessions(found), Shards(), results))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://test")


async def test_an_unhandled_error_is_a_500_that_names_its_request(assets: AssetLibrary, tmp_path: Path) -> None:
    async with client(assets, tmp_path, RuntimeError("a secret detail")) as http:
        for address in (f"{API}/runs", "/v1/sessions"):
            answer = await http.get(address)
            assert answer.status_code == 500
            assert answer.headers["x-request-id"] in answer.text
            assert "secret" not in answer.text
        assert (await http.get("/v1/sessions")).json()["error"]["code"] == "internal"


@pytest.mark.parametrize(
    ("status", "expected", "word"),
    [("unreachable", 503, "does not answer"), ("forbidden", 403, "refuses"), ("empty", 200, None)],
)
async def test_nothing_found_forbidden_and_unreachable_are_told_apart(
    assets: AssetLibrary, tmp_path: Path, status: str, expected: int, word: str | None
) -> None:
    message = f"gs://bucket/logs {word}."
    snapshot = Snapshot(1, (), (replace(ROOT, status=status, message=message),))  # type: ignore[arg-type]
    async with client(assets, tmp_path, snapshot) as http:
        runs = await http.get(f"{API}/runs")
        assert runs.status_code == expected
        if word is None:
            assert runs.json() == []
        else:
            assert word in runs.text
        page = await http.get("/")
        assert page.status_code == expected
        assert "gs://bucket/logs" in page.text
        assert "plugins/profile" in page.text
        listed = (await http.get("/v1/sessions")).json()
        assert listed["sessions"] == []
        assert listed["roots"][0]["status"] == status
        assert listed["roots"][0]["message"] == message


async def test_how_many_events_a_trace_hides_is_in_a_header(assets: AssetLibrary, tmp_path: Path) -> None:
    file = StoredFile("gs://bucket/logs/run/plugins/profile/s/host.xplane.pb", 1, 1.0, "etag", "1")
    session = Session("run/s", "logs", "gs://bucket/logs/run/plugins/profile/s", (HostFile("host", file),), 1.0, True)
    results = ResultStore(f"file://{tmp_path}", StoreOptions())
    tool = TOOLS["trace_viewer@"]
    for resolution, hidden in (("4000", 0), ("8000", 1234)):
        parameters = canonical_parameters(tool, {"resolution": resolution})
        header = RecordHeader("application/json", 2, "xprof", hidden_events=hidden)
        key = plan_job(session, tool, parameters, "host", None).key(tasks.ENGINE)
        await results.put(key, record_bytes(b"{}", header))
    async with client(assets, tmp_path, Snapshot(1, (session,), (ROOT,))) as http:
        query = {"run": "run/s", "tag": tool.name, "host": "host"}
        answers = [await http.get(f"{API}/data", params={**query, "resolution": asked}) for asked in ("3640", "7000")]
        assert [answer.text for answer in answers] == ["{}", "{}"]
        assert [answer.headers.get("x-xprof-hosting-hidden-events") for answer in answers] == [None, "1234"]


async def test_not_ready_says_why(assets: AssetLibrary, tmp_path: Path) -> None:
    async with client(assets, tmp_path, Snapshot(1, (), (ROOT,))) as http:
        answer = await http.get("/readyz")
        assert answer.status_code == 503
        assert "No shard is running" in answer.text
        assert answer.headers["retry-after"]
        assert (await http.get("/healthz")).status_code == 200


async def test_an_error_is_a_page_for_a_browser_json_for_the_api_and_text_for_the_ui(
    assets: AssetLibrary, tmp_path: Path
) -> None:
    error: ProfileError = StoreUnreachable("The bucket <b> does not answer.", retry_after=7)
    async with client(assets, tmp_path, error) as http:
        for address, headers, kind in (
            (f"{API}/runs", {}, "text/plain"),
            ("/v1/sessions", {}, "application/json"),
            (f"{API}/overview_page", {"sec-fetch-dest": "document"}, "text/html"),
        ):
            answer = await http.get(address, headers=headers)
            assert answer.status_code == 503
            assert answer.headers["content-type"].startswith(kind)
            assert answer.headers["retry-after"] == "7"
            assert answer.headers["cache-control"] == "no-store"
            assert "does not answer" in answer.text
            assert ("<b>" in answer.text) == (kind != "text/html")


async def test_get_routes_take_no_other_method(assets: AssetLibrary, tmp_path: Path) -> None:
    async with client(assets, tmp_path, Snapshot(1, (), (ROOT,))) as http:
        assert (await http.post(f"{API}/runs")).status_code == 405
        assert (await http.get(f"{API}/generate_cache")).status_code == 405
        assert (await http.post(f"{API}/generate_cache")).status_code == 400
        assert (await http.head(f"{API}/bundle.js")).status_code == 200
