"""Credentials for GCS, which no emulator asks for."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import google.auth
import obstore
import pytest
from google.auth.credentials import Credentials
from google.auth.exceptions import DefaultCredentialsError, RefreshError, TransportError
from obstore.store import GCSStore

from loaders import gcs_metadata
from loaders.errors import AccessDenied, StoreUnreachable
from loaders.gcs_clients import _Tokens
from loaders.stores import StoreOptions, open_store


def failure(kind: Any, message: str) -> Exception:
    """google.auth's errors have no types."""
    error: Exception = kind(message)
    return error


class StubCredentials(Credentials):  # type: ignore[misc, unused-ignore]
    """Gives `token-1`, `token-2`, … at each refresh."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.refreshed = 0
        self.error = error

    def refresh(self, request: object) -> None:
        if self.error is not None:
            raise self.error
        self.refreshed += 1
        self.token = f"token-{self.refreshed}"
        self.expiry = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=1)


class PrivateStore(ThreadingHTTPServer):
    """Gives an empty listing, or `data`, to whoever comes with a token."""

    def __init__(self) -> None:
        self.seen: list[str | None] = []
        super().__init__(("127.0.0.1", 0), self.handler())
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handler(self) -> type[BaseHTTPRequestHandler]:
        seen = self.seen

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                seen.append(self.headers.get("authorization"))
                body = json.dumps({"items": []}).encode() if "/storage/v1/" in self.path else b"data"
                self.send_response(200 if seen[-1] else 401)
                self.send_header("content-length", str(len(body)))
                self.send_header("last-modified", "Tue, 01 Dec 2026 04:43:40 GMT")
                self.send_header("etag", '"x"')
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


@pytest.fixture
def private(monkeypatch: pytest.MonkeyPatch) -> Iterator[PrivateStore]:
    """A server that stands in for Google's own."""
    with PrivateStore() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(gcs_metadata, "_PUBLIC", server.url)
        yield server
        server.shutdown()


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What looking for credentials finds, one after the other: credentials, or an error."""
    results: list[Any] = []

    def default(scopes: list[str]) -> tuple[Any, None]:
        assert scopes == ["https://www.googleapis.com/auth/devstorage.read_only"]
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result, None

    monkeypatch.setattr(google.auth, "default", default)
    return results


async def listing() -> list[object]:
    store = open_store("gs://bucket", StoreOptions(connect_timeout=1.0, stall_timeout=1.0))
    return [entry async for page in store.list() for entry in page]


async def test_a_listing_is_asked_for_with_the_default_credentials(private: PrivateStore, found: list[Any]) -> None:
    found.append(StubCredentials())
    assert await listing() == []
    assert private.seen == ["Bearer token-1"]


async def test_without_credentials_a_bucket_is_asked_as_the_public_does_and_credentials_are_looked_for_again(
    private: PrivateStore, found: list[Any]
) -> None:
    found += [failure(DefaultCredentialsError, "none"), StubCredentials()]
    store = open_store("gs://bucket", StoreOptions(connect_timeout=1.0, stall_timeout=1.0))
    with pytest.raises(AccessDenied, match="Application Default Credentials"):
        _ = [page async for page in store.list()]
    assert [page async for page in store.list()] == [[]]
    assert private.seen == [None, "Bearer token-1"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [(failure(RefreshError, "revoked"), AccessDenied), (failure(TransportError, "no route"), StoreUnreachable)],
)
async def test_unusable_credentials_and_an_unreachable_token_server_are_told_apart(
    private: PrivateStore, found: list[Any], error: Exception, kind: type[Exception]
) -> None:
    found.append(StubCredentials(error))
    with pytest.raises(kind, match=str(error)):
        await listing()
    assert private.seen == []


async def test_bytes_are_read_with_tokens_that_are_refreshed_when_they_are_due(private: PrivateStore) -> None:
    credentials = StubCredentials()
    tokens = _Tokens(credentials)
    store = GCSStore(
        "bucket",
        config={"base_url": private.url},
        client_options={"allow_http": True},
        credential_provider=tokens,
    )
    for _ in range(2):
        assert bytes(await (await obstore.get_async(store, "k")).bytes_async()) == b"data"
    assert private.seen == ["Bearer token-1", "Bearer token-1"]
    given = tokens()
    assert given["token"] == "token-1"
    assert timedelta(minutes=59) < given["expires_at"] - datetime.now(UTC) < timedelta(minutes=61)
    credentials.expiry = datetime.now(UTC).replace(tzinfo=None)
    assert tokens()["token"] == "token-2"
