"""Log roots in Amazon S3 and what speaks its protocol."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import obstore
import obstore.store
from obstore.exceptions import BaseError

from loaders.bucket_errors import brief, explain, no_bucket
from loaders.errors import BadParameter, NotFound
from loaders.object_keys import is_proper
from loaders.object_stream import FEW_RETRIES, NO_RETRIES, client_options, stream
from loaders.stored_file import Checksum, Skipped, StoredFile

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import RetryConfig

_PAGE: Final = 1000
_MD5: Final = re.compile(r'"?([0-9a-f]{32})"?')
# What obstore takes; the others (AWS_PROFILE, AWS_EXECUTION_ENV, …) are for other programs, and it rejects them.
_VARIABLES: Final = frozenset(
    {
        "AWS_ACCESS_KEY_ID",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_IMDSV1_FALLBACK",
        "AWS_METADATA_ENDPOINT",
        "AWS_REGION",
        "AWS_REQUEST_PAYER",
        "AWS_ROLE_ARN",
        "AWS_ROLE_SESSION_NAME",
        "AWS_S3_EXPRESS",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_SKIP_SIGNATURE",
        "AWS_TOKEN",
        "AWS_UNSIGNED_PAYLOAD",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
    }
)
_REMEDY: Final = (
    "Give the service's account s3:ListBucket and s3:GetObject on the bucket. It is the account of AWS_ACCESS_KEY_ID "
    "and AWS_SECRET_ACCESS_KEY, a web identity, the container or the instance. AWS_SKIP_SIGNATURE=true goes without."
)


class S3Store:
    """The objects below `s3://bucket[/prefix]`."""

    def __init__(self, uri: str, variables: Mapping[str, str], connect_timeout: float, stall_timeout: float) -> None:
        """`variables` are the `AWS_*` variables that are set. Timeouts in seconds.

        Raises:
            BadParameter: a variable's value cannot be understood.
        """
        self.uri = uri
        self._bucket, _, self._prefix = uri.removeprefix("s3://").partition("/")
        self._place = _endpoint(variables) or f"s3://{self._bucket}"
        bucket = f"s3://{self._bucket}"
        self._reading = connect(bucket, variables, connect_timeout, stall_timeout, retries=NO_RETRIES)
        self._listing = connect(bucket, variables, connect_timeout, stall_timeout, retries=FEW_RETRIES)

    async def list(self) -> AsyncIterator[Sequence[StoredFile | Skipped]]:
        """All objects below the prefix; see `Store.list`.

        obstore gives up a listing with an improper key in it (empty part, `..`), so that here such a log root counts as
        unreachable, with the key in the message.
        """
        listing = obstore.list(self._listing, self._prefix or None, chunk_size=_PAGE)
        try:
            async for page in listing:
                yield [self._stored_file(found) for found in page]
        except Exception as error:
            explained = explain(error, self.uri, self._place, remedy=_REMEDY)
            raise no_bucket(f"s3://{self._bucket}") if isinstance(explained, NotFound) else explained from error

    async def head(self, uri: str) -> StoredFile:
        """One object; see `Store.head`."""
        key = self._key(uri)
        try:
            return self._stored_file(await obstore.head_async(self._listing, key))
        except Exception as error:
            raise explain(error, uri, self._place, remedy=_REMEDY) from error

    async def read(self, file: StoredFile, start: int = 0) -> AsyncGenerator[bytes, None]:
        """The object's bytes; see `Store.read`."""
        key = self._key(file.uri)
        try:
            async for chunk in stream(self._reading, key, file, start, {"if_match": file.etag}):
                yield chunk
        except Exception as error:
            raise explain(error, file.uri, self._place, remedy=_REMEDY) from error

    async def checksum(self, file: StoredFile) -> Checksum | None:
        """The MD5 in the ETag of objects that were uploaded in one part; with KMS encryption it only looks like one."""
        match = _MD5.fullmatch(file.etag or "")
        return Checksum("md5", bytes.fromhex(match[1]), certain=False) if match else None

    def _key(self, uri: str) -> str:
        root = f"s3://{self._bucket}/"
        key = uri.removeprefix(root)
        inside = not self._prefix or key.startswith(f"{self._prefix}/")
        if not uri.startswith(root) or not inside or not is_proper(key):
            raise NotFound(f"{uri} is not an object below the log root {self.uri}.")
        return key

    def _stored_file(self, found: ObjectMeta) -> StoredFile:
        return StoredFile(
            uri=f"s3://{self._bucket}/{found['path']}",
            size=found["size"],
            modified=found["last_modified"].timestamp(),
            etag=found["e_tag"],
            # Heads give a version id and listings do not: with it, one object would have two identities.
            version=None,
        )


def connect(
    uri: str, variables: Mapping[str, str], connect_timeout: float, stall_timeout: float, *, retries: RetryConfig
) -> obstore.store.S3Store:
    """obstore's client for what lies below `uri`.

    Raises:
        BadParameter: a variable's value cannot be understood.
    """
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    plain = (_endpoint(variables) or "").startswith("http://")
    plain = plain or variables.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true")
    http = client_options(connect_timeout, stall_timeout, allow_http=plain)
    config: Any = {name.lower(): variables[name] for name in sorted(_VARIABLES) if variables.get(name)}
    try:
        if not plain and (authorities := variables.get("AWS_CA_BUNDLE")):
            http["root_certificate"] = Path(authorities).read_bytes()
        return obstore.store.S3Store(
            bucket, prefix=prefix or None, config=config, client_options=http, retry_config=retries
        )
    except (BaseError, OSError, ValueError) as error:
        raise BadParameter(f"The AWS_* variables do not work for {uri}: {brief(error)}.") from error


def _endpoint(variables: Mapping[str, str]) -> str | None:
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    return next((variables[name] for name in names if variables.get(name)), None)
