"""The requests of the GCS JSON API that we make: list objects, look at one, and write one where results are kept.

Not by google-cloud-storage, which besides each of them asks for the bucket's own metadata, in the background: more than
the permission on objects that has to suffice, and a request more.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from google.auth.credentials import Credentials
from google.auth.transport.requests import AuthorizedSession
from requests.adapters import HTTPAdapter  # type: ignore[import-untyped, unused-ignore]
from urllib3.util import Retry

from loaders.stored_file import StoredFile

PAGE: Final = 1000
CRC32C: Final = "crc32c="

_OBJECT: Final = "name,size,updated,generation,crc32c,etag"
_PUBLIC: Final = "https://storage.googleapis.com"
_PASSING: Final = (408, 429, 500, 502, 503, 504)


class HttpStatusError(Exception):
    """An answer that is none."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status = status


class GcsMetadata:
    """Blocking; for several threads at once."""

    def __init__(
        self, bucket: str, endpoint: str | None, credentials: Credentials, connect_timeout: float, stall_timeout: float
    ) -> None:
        """Timeouts in seconds, as for `gcs_clients.connect`."""
        self._bucket = bucket
        self._url = f"{endpoint or _PUBLIC}/storage/v1/b/{quote(bucket, safe='')}/o"
        self._timeout = (connect_timeout, stall_timeout)
        self._session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call, unused-ignore]
        retries = Retry(
            total=3,
            backoff_factor=0.1,
            backoff_jitter=0.1,
            status_forcelist=_PASSING,
            raise_on_status=False,
            respect_retry_after_header=False,
        )
        for scheme in ("https://", "http://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=retries))

    def pages(self, prefix: str) -> Iterator[list[StoredFile]]:
        """All objects whose keys begin with `prefix`, up to 1,000 per request.

        Raises:
            HttpStatusError: the store refuses, or has errors of its own.
            requests.RequestException, google.auth.exceptions.GoogleAuthError: it is not reached.
        """
        wanted = {"maxResults": str(PAGE), "fields": f"items({_OBJECT}),nextPageToken", "prettyPrint": "false"}
        if prefix:
            wanted["prefix"] = prefix
        while True:
            page = self._get(self._url, wanted)
            yield [self._stored_file(item) for item in page.get("items", ())]
            if not (token := page.get("nextPageToken")):
                return
            wanted["pageToken"] = token

    def look(self, key: str) -> StoredFile:
        """One object as it is now; raises as `pages` does."""
        return self._stored_file(self._get(f"{self._url}/{quote(key, safe='')}", {"fields": _OBJECT}))

    def write(self, key: str, data: bytes) -> None:
        """Makes or replaces an object in one request; raises as `pages` does."""
        answer = self._session.post(
            self._url.replace("/storage/v1/", "/upload/storage/v1/"),
            params={"uploadType": "media", "name": key},
            data=data,
            headers={"Content-Type": "application/octet-stream"},
            timeout=self._timeout,
        )
        if answer.status_code != 200:
            raise HttpStatusError(answer.status_code, answer.reason or "")

    def _get(self, url: str, parameters: dict[str, str]) -> Any:
        answer = self._session.get(url, params=parameters, timeout=self._timeout)
        if answer.status_code != 200:
            raise HttpStatusError(answer.status_code, answer.reason or "")
        return answer.json()

    def _stored_file(self, item: Any) -> StoredFile:
        return StoredFile(
            uri=f"gs://{self._bucket}/{item['name']}",
            size=int(item["size"]),
            modified=datetime.fromisoformat(item["updated"]).timestamp() if "updated" in item else 0.0,
            # GCS's own ETag changes with an object's metadata too; the checksum is the content's alone.
            etag=f"{CRC32C}{item['crc32c']}" if item.get("crc32c") else item.get("etag"),
            version=item["generation"],
        )
