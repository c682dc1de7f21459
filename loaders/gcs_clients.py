"""The two clients of one GCS bucket, with one set of credentials between them."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final, Literal

import google.auth
import google.auth.exceptions
import google.auth.transport.requests
from google.auth.credentials import AnonymousCredentials, Credentials
from obstore.store import GCSStore

from loaders.gcs_metadata import GcsMetadata
from loaders.object_stream import client_options

if TYPE_CHECKING:
    from obstore.store import RetryConfig

Access = Literal["read_only", "read_write"]

_PUBLIC_HOST: Final = "storage.googleapis.com"


@dataclass(frozen=True, slots=True)
class GcsClients:
    """One for listings and metadata, and obstore's for bytes."""

    metadata: GcsMetadata
    objects: GCSStore
    guest: bool
    """No credentials were found where there should be some: public buckets work, and it is worth looking again."""


def endpoint_url(endpoint: str | None) -> str | None:
    """`STORAGE_EMULATOR_HOST` as a url: it is given with and without `http://`."""
    if not endpoint:
        return None
    return (endpoint if "://" in endpoint else f"http://{endpoint}").rstrip("/")


def connect(
    bucket: str,
    prefix: str | None,
    endpoint: str | None,
    connect_timeout: float,
    stall_timeout: float,
    *,
    access: Access,
    retries: RetryConfig,
) -> GcsClients:
    """Make the clients. Blocks: without an endpoint it looks for credentials, perhaps at the metadata server.

    Args:
        prefix: what obstore's client puts before every key.
        endpoint: the url of an emulator or private endpoint, asked without credentials; nobody else is asked then.
        connect_timeout: seconds until a connection must stand.
        stall_timeout: seconds without a byte after which a connection is broken.
        retries: of obstore's client.

    Raises:
        google.auth.exceptions.GoogleAuthError: credentials are there but unusable.
    """
    credentials: Credentials = _anonymous()
    guest = False
    if endpoint is None:
        try:
            credentials, _ = google.auth.default(scopes=[f"https://www.googleapis.com/auth/devstorage.{access}"])
        except google.auth.exceptions.DefaultCredentialsError:
            guest = True
    http = client_options(connect_timeout, stall_timeout, allow_http=(endpoint or "").startswith("http://"))
    # Without this, GCS unpacks objects stored with `Content-Encoding: gzip` on the way, and size and checksum differ.
    headers = {"accept-encoding": "gzip"}
    if http["allow_http"]:
        # fake-gcs-server answers the XML API, which obstore speaks, under Google's host name only.
        headers["host"] = _PUBLIC_HOST
    http["default_headers"] = headers
    config: dict[str, Any] = {}
    provider = None
    if isinstance(credentials, AnonymousCredentials):
        config["skip_signature"] = True
        # Writes are signed all the same, for which obstore would go and look for credentials.
        config["service_account_key"] = _no_account(endpoint)
    else:
        provider = _Tokens(credentials)
    objects = GCSStore(
        bucket,
        prefix=prefix,
        config=config,  # type: ignore[arg-type]
        client_options=http,
        retry_config=retries,
        credential_provider=provider,
    )
    metadata = GcsMetadata(bucket, endpoint, credentials, connect_timeout, stall_timeout)
    return GcsClients(metadata, objects, guest)


class _Tokens:
    """Gives obstore the access tokens of google.auth's credentials."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._one_at_a_time = threading.Lock()

    def __call__(self) -> Any:
        with self._one_at_a_time:
            if not self._credentials.valid:
                request = google.auth.transport.requests.Request()
                self._credentials.refresh(request)  # type: ignore[no-untyped-call, unused-ignore]
            expiry = self._credentials.expiry
            # google.auth keeps its times in UTC, without saying so.
            return {"token": self._credentials.token, "expires_at": expiry and expiry.replace(tzinfo=UTC)}


def _anonymous() -> Credentials:
    return AnonymousCredentials()  # type: ignore[no-untyped-call, unused-ignore]


def _no_account(endpoint: str | None) -> str:
    account = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    return json.dumps({**account, "gcs_base_url": endpoint} if endpoint else account)
