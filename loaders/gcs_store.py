"""Log roots in Google Cloud Storage.

Listings and object metadata come from the JSON API with google.auth's credentials: they give every object's generation
and checksum, cope with keys for which obstore gives up the whole listing, and emulators know them. The bytes come
through obstore, which streams fast, pinned to the generation that was listed.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NoReturn, TypeVar

from google.auth.exceptions import GoogleAuthError, TransportError

from loaders.bucket_errors import brief, by_status, changed, explain, no_bucket, refused
from loaders.errors import AccessDenied, NotFound, ProfileError, StoreUnreachable
from loaders.gcs_clients import GcsClients, connect, endpoint_url
from loaders.gcs_metadata import CRC32C, HttpStatusError
from loaders.object_keys import IMPROPER, MARKER, is_proper
from loaders.object_stream import FEW_RETRIES, NO_RETRIES, stream
from loaders.stored_file import Checksum, Skipped, StoredFile

T = TypeVar("T")

_REMEDY: Final = (
    "Give the service's account the role roles/storage.objectViewer on the bucket. The account is that of Google's "
    "Application Default Credentials: workload identity, GOOGLE_APPLICATION_CREDENTIALS or "
    "`gcloud auth application-default login`."
)


class GcsStore:
    """The objects below `gs://bucket[/prefix]`."""

    def __init__(self, uri: str, endpoint: str | None, connect_timeout: float, stall_timeout: float) -> None:
        """`endpoint` is an emulator or private endpoint, asked without credentials. Timeouts in seconds."""
        self.uri = uri
        self._bucket, _, prefix = uri.removeprefix("gs://").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._endpoint = endpoint_url(endpoint)
        self._place = self._endpoint or f"gs://{self._bucket}"
        self._connect_timeout = connect_timeout
        self._stall_timeout = stall_timeout
        # Of its own, so that a store that stalls does not hold up everybody's disk writes.
        self._threads = ThreadPoolExecutor(4, thread_name_prefix=f"gs-{self._bucket}")
        self._connecting = threading.Lock()
        self._connected: GcsClients | None = None

    async def list(self) -> AsyncIterator[Sequence[StoredFile | Skipped]]:
        """All objects below the prefix; see `Store.list`."""
        pages = await self._ask(lambda clients: clients.metadata.pages(self._prefix), self.uri)
        try:
            while (page := await self._ask(lambda _: next(pages, None), self.uri)) is not None:
                yield [_checked(file) for file in page]
        except NotFound:
            raise no_bucket(f"gs://{self._bucket}") from None

    async def head(self, uri: str) -> StoredFile:
        """One object; see `Store.head`."""
        key = self._key(uri)
        return await self._ask(lambda clients: clients.metadata.look(key), uri)

    async def read(self, file: StoredFile, start: int = 0) -> AsyncGenerator[bytes, None]:
        """The object's bytes; see `Store.read`."""
        key = self._key(file.uri)
        objects = await self._ask(lambda clients: clients.objects, file.uri)
        try:
            async for chunk in stream(objects, key, file, start, {"version": file.version}):
                yield chunk
        except FileNotFoundError:
            await self._raise_gone(file)
        except Exception as error:
            raise self._explain(error, file.uri) from error

    async def checksum(self, file: StoredFile) -> Checksum | None:
        """The CRC32C, which GCS keeps for every object and which came with the listing."""
        if file.etag is None or not file.etag.startswith(CRC32C):
            return None
        return Checksum("crc32c", base64.b64decode(file.etag.removeprefix(CRC32C)))

    def _key(self, uri: str) -> str:
        root = f"gs://{self._bucket}/"
        key = uri.removeprefix(root)
        if not uri.startswith(root) or not key.startswith(self._prefix) or not is_proper(key):
            raise NotFound(f"{uri} is not an object below the log root {self.uri}.")
        return key

    async def _raise_gone(self, file: StoredFile) -> NoReturn:
        """The generation that was listed is gone: replaced, or deleted?"""
        now = await self.head(file.uri)
        if now.identity != file.identity:
            raise changed(file.uri) from None
        raise StoreUnreachable(f"{self._place} lists {file.uri} but does not give it. Try again in a moment.")

    async def _ask(self, work: Callable[[GcsClients], T], what: str) -> T:
        def connected() -> T:
            return work(self._clients())

        try:
            # Cancelling does not wait for the thread: it ends by its timeouts, and holds nothing that others use.
            return await asyncio.get_running_loop().run_in_executor(self._threads, connected)
        except Exception as error:
            raise self._explain(error, what) from error

    def _clients(self) -> GcsClients:
        with self._connecting:
            if self._connected is None:
                self._connected = connect(
                    self._bucket,
                    None,
                    self._endpoint,
                    self._connect_timeout,
                    self._stall_timeout,
                    access="read_only",
                    retries=NO_RETRIES,
                )
            return self._connected

    def _explain(self, error: Exception, what: str) -> ProfileError:
        explained = _explain(error, what, self._place)
        connected = self._connected
        if isinstance(explained, AccessDenied) and connected is not None and connected.guest:
            # The metadata server of a fresh pod may answer late: look for credentials again next time.
            self._connected = None
        return explained


def connect_for_writing(uri: str, endpoint: str | None, connect_timeout: float, stall_timeout: float) -> GcsClients:
    """The clients of what lies below `uri`, with leave to write. Blocks while it looks for credentials.

    Raises:
        AccessDenied: there are credentials, but they cannot be used.
        StoreUnreachable: credentials cannot be looked up.
    """
    bucket, _, prefix = uri.removeprefix("gs://").partition("/")
    url = endpoint_url(endpoint)
    try:
        clients = connect(
            bucket, prefix or None, url, connect_timeout, stall_timeout, access="read_write", retries=FEW_RETRIES
        )
    except GoogleAuthError as error:
        raise _explain(error, uri, url or uri) from error
    return clients


def _explain(error: Exception, what: str, place: str) -> ProfileError:
    if isinstance(error, HttpStatusError):
        return by_status(error.status, brief(error), what, place, remedy=_REMEDY)
    if isinstance(error, GoogleAuthError) and not isinstance(error, TransportError):
        return refused(what, f"{_REMEDY} ({brief(error)})")
    return explain(error, what, place, remedy=_REMEDY)


def _checked(file: StoredFile) -> StoredFile | Skipped:
    key = file.uri.removeprefix("gs://").partition("/")[2]
    if key.endswith("/"):
        return Skipped(file.uri, MARKER)
    return file if is_proper(key) else Skipped(file.uri, IMPROPER)
