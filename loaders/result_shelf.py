"""Where results lie: a folder or a bucket, by path."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

import obstore
from obstore.store import GCSStore, LocalStore, ObjectStore

from loaders.errors import DiskFull, ProfileError, StoreUnreachable
from loaders.gcs_metadata import GcsMetadata
from loaders.stores import StoreOptions, canonical_uri, object_store


class Shelf(Protocol):
    """Whole byte strings by path. Errors are of the `ProfileError` family."""

    folder: Path | None
    """The folder, for a local shelf."""

    async def read(self, path: str) -> memoryview | None:
        """What lies at the path, or None."""

    async def write(self, path: str, data: bytes | memoryview) -> None:
        """Puts something there; it appears whole or not at all."""

    async def delete(self, path: str) -> None:
        """Takes away what lies there, if anything."""


class ObjectShelf:
    """A shelf in whatever obstore reaches."""

    def __init__(self, uri: str, store: ObjectStore) -> None:
        self.folder = Path(uri.removeprefix("file://")) if isinstance(store, LocalStore) else None
        self._uri = uri
        self._store = store

    async def read(self, path: str) -> memoryview | None:
        """See `Shelf.read`."""
        try:
            result = await obstore.get_async(self._store, path)
            return memoryview(await result.bytes_async())
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._failure(error) from None

    async def write(self, path: str, data: bytes | memoryview) -> None:
        """See `Shelf.write`."""
        try:
            await obstore.put_async(self._store, path, bytes(data))
        except Exception as error:
            raise self._failure(error) from None

    async def delete(self, path: str) -> None:
        """See `Shelf.delete`."""
        try:
            await obstore.delete_async(self._store, path)
        except FileNotFoundError:
            return
        except Exception as error:
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> ProfileError:
        words = str(error).partition("\n")[0][:300]
        if "No space left" in words:
            return DiskFull(f"The result store at {self._uri} is full: free some space or lower --results-gib.")
        return StoreUnreachable(f"The result store at {self._uri} fails: {words}.")


class GcsShelf(ObjectShelf):
    """A shelf in a GCS bucket, written by the JSON API, which emulators know; obstore speaks the XML API."""

    def __init__(self, uri: str, store: GCSStore, api: GcsMetadata) -> None:
        super().__init__(uri, store)
        prefix = uri.removeprefix("gs://").partition("/")[2]
        self._prefix = f"{prefix}/" if prefix else ""
        self._api = api

    async def write(self, path: str, data: bytes | memoryview) -> None:
        """See `Shelf.write`."""
        try:
            await asyncio.to_thread(self._api.write, self._prefix + path, bytes(data))
        except Exception as error:
            raise self._failure(error) from None


def open_shelf(uri: str, options: StoreOptions) -> Shelf:
    """The shelf at a canonical uri; a folder is made when missing. Blocks while it looks for credentials.

    Raises:
        AccessDenied, StoreUnreachable: credentials can't be used, or not be looked up.
    """
    if uri.startswith("gs://"):
        from loaders.gcs_store import connect_for_writing

        clients = connect_for_writing(
            canonical_uri(uri), options.gcs_endpoint, options.connect_timeout, options.stall_timeout
        )
        return GcsShelf(uri, clients.objects, clients.metadata)
    return ObjectShelf(uri, object_store(uri, options))
