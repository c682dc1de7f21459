"""Streaming one object out of a bucket, with the object pinned."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import obstore

from loaders.bucket_errors import changed
from loaders.stored_file import StoredFile

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

CHUNK: Final = 256 << 10
"""Bytes given on at a time, the last ones of an object aside: what a broken connection loses is less than that."""

NO_RETRIES: Final[RetryConfig] = {"max_retries": 0}
"""For reading: the download resumes by itself, and needs to see every broken connection to do so."""

FEW_RETRIES: Final[RetryConfig] = {"max_retries": 3, "retry_timeout": timedelta(seconds=5)}
"""For listings, metadata and small objects."""


def client_options(connect_timeout: float, stall_timeout: float, *, allow_http: bool) -> ClientConfig:
    """How obstore's HTTP client behaves: seconds to connect, seconds without a byte, no limit for the whole."""
    return {
        "allow_http": allow_http,
        "connect_timeout": f"{round(connect_timeout * 1000)}ms",
        "read_timeout": f"{round(stall_timeout * 1000)}ms",
        # obstore's own limit for a whole transfer is 30 s, less than a large file may need.
        "timeout": "1day",
    }


async def stream(
    store: ObjectStore, key: str, file: StoredFile, start: int, pin: GetOptions
) -> AsyncGenerator[bytes, None]:
    """The object's bytes from `start`, in one request.

    Args:
        pin: what makes the store refuse any other object under this key.

    Raises:
        ObjectChanged: the store sends another object all the same.
        Exception: whatever obstore raises.
    """
    # obstore wants what is not known left out.
    options: Any = {name: value for name, value in pin.items() if value is not None}
    if start:
        if start >= file.size:
            return
        options["range"] = {"offset": start}
    result = await obstore.get_async(store, key, options=options)
    found = result.meta
    if found["size"] != file.size or not _same(file.version, found["version"]):
        raise changed(file.uri)
    if "if_match" in pin and not _same(file.etag, found["e_tag"]):
        raise changed(file.uri)
    async for chunk in result.stream(min_chunk_size=CHUNK):
        yield chunk


def _same(listed: str | None, found: str | None) -> bool:
    return listed is None or found is None or listed == found
