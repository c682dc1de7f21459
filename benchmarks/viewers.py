"""Viewers: what a browser asks when somebody opens a tool, timed without decoding the answers."""

from __future__ import annotations

import gzip
import http.client
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlencode

from benchmarks.servers import API, RunningServer

TIMEOUT = 120.0  # seconds for one answer

# What the UI sends besides run, tag and host.
PARAMETERS: dict[str, dict[str, str]] = {
    "trace_viewer@": {"replace_model": "true", "new_backend": "false", "resolution": "3640"},
    "overview_page": {},
    "op_profile": {"group_by": "program"},
}


class RequestFailed(RuntimeError):
    """An answer that no viewer could use."""


@dataclass(frozen=True, slots=True)
class View:
    """One tool of one session. `hosts` are all of the session's, in order."""

    session: str
    tool: str
    hosts: tuple[str, ...]

    @property
    def parameters(self) -> dict[str, str]:
        host = "ALL_HOSTS" if self.tool == "overview_page" and len(self.hosts) > 1 else self.hosts[0]
        chosen = {"run": self.session, "tag": self.tool, "host": host, **PARAMETERS[self.tool]}
        if self.tool == "trace_viewer@" and len(self.hosts) > 1:
            chosen["hosts"] = ",".join(self.hosts)
        return chosen


class Viewer:
    """One browser: a connection of its own that is kept open. Use as a context manager, by one thread."""

    def __init__(self, server: RunningServer) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT)

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def open(self, view: View) -> float:
        """Asks for the session's tools, the tool's hosts and its data, as the UI does; returns the seconds taken."""
        started = time.perf_counter()
        self._get("run_tools", {"run": view.session})
        self._get("hosts", {"run": view.session, "tag": view.tool})
        self._get("data", view.parameters)
        return time.perf_counter() - started

    def look(self, view: View) -> float:
        """Asks for the tool's data again; returns the seconds taken."""
        started = time.perf_counter()
        self._get("data", view.parameters)
        return time.perf_counter() - started

    def size(self, view: View) -> int:
        """The size in bytes of the tool's data, decoded."""
        body, encoding = self._get("data", view.parameters)
        return len(gzip.decompress(body) if encoding == "gzip" else body)

    def sees(self, session: str) -> bool:
        """Whether the server lists the session."""
        body, encoding = self._get("runs", {})
        return session in json.loads(gzip.decompress(body) if encoding == "gzip" else body)

    def _get(self, route: str, parameters: dict[str, str]) -> tuple[bytes, str]:
        path = f"{API}{route}?{urlencode(parameters)}"
        try:
            # The stock server always answers gzipped. Asking both for it makes the bytes on the wire comparable.
            self._connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
            response = self._connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise RequestFailed(f"{path}: {error!r}") from error
        if response.status != 200 or not body:
            raise RequestFailed(f"{path}: {response.status} {body[:200]!r}")
        return body, response.headers.get("Content-Encoding", "identity")


def together(server: RunningServer, viewers: int, work: Callable[[Viewer], int]) -> float:
    """Lets so many viewers do the work at once; returns what they did in all (the sum of `work`) per second."""

    def one(_: int) -> int:
        with Viewer(server) as viewer:
            return work(viewer)

    started = time.perf_counter()
    with ThreadPoolExecutor(viewers) as pool:
        done = sum(pool.map(one, range(viewers)))
    return done / (time.perf_counter() - started)
