"""Viewers: what a browser asks when somebody opens a tool, timed without decoding the answers."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from urllib.parse import urlencode

from benchmarks.memory import FullMachineGuard, kill_tree
from benchmarks.servers import API, RunningServer

TIMEOUT = 120.0  # seconds for one answer

ALL_HOSTS = ", all hosts"
"""After a tool's name: the same tool asked for every host at once."""

# What the UI sends besides run, tag and host.
PARAMETERS: dict[str, dict[str, str]] = {
    "trace_viewer@": {"replace_model": "true", "new_backend": "false", "resolution": "3640"},
    "overview_page": {},
    "op_profile": {"group_by": "program"},
}


class RequestFailed(RuntimeError):
    """An answer that no viewer could use. `reason` says why in a word or two."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class View:
    """One tool of one session; `overview_page` is always of all its hosts, others where the tool's name says so.

    `hosts` are all of the session's, in order; `more` is asked besides what the tool asks anyway.
    """

    session: str
    tool: str
    hosts: tuple[str, ...]
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def tag(self) -> str:
        return self.tool.removesuffix(ALL_HOSTS)

    @property
    def parameters(self) -> dict[str, str]:
        host = "ALL_HOSTS" if self.tag == "overview_page" and len(self.hosts) > 1 else self.hosts[0]
        chosen = {"run": self.session, "tag": self.tag, "host": host, **PARAMETERS[self.tag]}
        if self.tool.endswith(ALL_HOSTS):
            chosen["hosts"] = ",".join(self.hosts)
        return {**chosen, **self.more}


class Viewer:
    """One browser: a connection of its own that is kept open. Use as a context manager, by one thread."""

    def __init__(self, server: RunningServer, timeout: float = TIMEOUT) -> None:
        self._timeout = timeout
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout)
        self.request_id = ""
        """What the last answer says; this service's logs have it."""

    def __enter__(self) -> Viewer:
        # A browser has its connection already when somebody clicks.
        try:
            self._connection.connect()
        except OSError as error:
            raise RequestFailed(f"no connection: {error!r}", "died") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def open(self, view: View) -> float:
        """Asks for the session's tools, the tool's hosts and its data, as the UI does; returns the seconds taken."""
        started = time.perf_counter()
        self.tools(view.session)
        self._get("hosts", {"run": view.session, "tag": view.tag})
        self._get("data", view.parameters)
        return time.perf_counter() - started

    def tools(self, session: str) -> float:
        """Asks for the session's tools; returns the seconds taken."""
        started = time.perf_counter()
        answer = self._get("run_tools", {"run": session})
        seconds = time.perf_counter() - started
        if not json.loads(_decoded(*answer)):
            raise RequestFailed(f"{session} is said to have no tools", "refused")
        return seconds

    def look(self, view: View) -> float:
        """Asks for the tool's data again; returns the seconds taken."""
        started = time.perf_counter()
        self._get("data", view.parameters)
        return time.perf_counter() - started

    def body(self, view: View) -> bytes:
        """The tool's data, decoded."""
        return _decoded(*self._get("data", view.parameters))

    def sees(self, session: str) -> bool:
        """Whether the server lists the session."""
        return session in json.loads(_decoded(*self._get("runs", {})))

    def _get(self, route: str, parameters: dict[str, str]) -> tuple[bytes, str]:
        path = f"{API}{route}?{urlencode(parameters)}"
        try:
            # The stock server always answers gzipped. Asking all for it makes the bytes on the wire comparable.
            self._connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
            response = self._connection.getresponse()
            body = response.read()
            self.request_id = response.headers.get("X-Request-Id", "")
        except TimeoutError:
            self._connection.close()
            raise RequestFailed(f"{path}: no answer", f"over {self._timeout:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise RequestFailed(f"{path}: {error!r}", "died") from error
        encoding = response.headers.get("Content-Encoding", "identity")
        if response.status != 200 or not body:
            with contextlib.suppress(OSError, EOFError):
                body = _decoded(body, encoding)
            raise RequestFailed(f"{path}: {response.status} {body[:200]!r}", f"refused ({response.status})")
        return body, encoding


def wait_for_sessions(server: RunningServer, sessions: list[str], within: float = 60.0) -> None:
    """Waits until the server lists all sessions, so that finding them is not measured."""
    end = time.monotonic() + within
    with Viewer(server) as viewer:
        for session in sessions:
            while not viewer.sees(session):
                if time.monotonic() > end:
                    raise RequestFailed(f"{server.name} does not list {session} after {within:g} s", "no sessions")
                time.sleep(0.5)


def together(server: RunningServer, viewers: int, work: Callable[[Viewer], None]) -> None:
    """Lets so many viewers do the work at once."""

    def one(_: int) -> None:
        with Viewer(server) as viewer:
            work(viewer)

    with ThreadPoolExecutor(viewers) as pool:
        list(pool.map(one, range(viewers)))


def views_per_second(
    server: RunningServer, viewers: int, view: View, within: float, patience: float
) -> tuple[float, str | None]:
    """How many views a second are answered when so many viewers look again and again, and what went wrong.

    New views begin for `within` seconds; for those that then are under way, `patience` seconds more are waited. A
    server that has not answered them all by then, or has filled the machine, is killed.
    """
    started = time.perf_counter()
    ended: list[float] = []
    failures: list[RequestFailed] = []

    def look_again_and_again() -> None:
        try:
            with Viewer(server) as viewer:
                while time.perf_counter() < started + within:
                    viewer.look(view)
                    ended.append(time.perf_counter())
        except RequestFailed as error:
            failures.append(error)

    threads = [threading.Thread(target=look_again_and_again, daemon=True) for _ in range(viewers)]
    with FullMachineGuard(server.pids) as guard:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, started + within + patience - time.perf_counter()))
        answered = list(ended)
        late = any(thread.is_alive() for thread in threads)
        if late:
            kill_tree(server.pids)
    if guard.exhausted:
        return len(answered) / (time.perf_counter() - started), "filled the machine"
    if late:
        return len(answered) / (within + patience), f"not all answered in {within + patience:g} s"
    if failures:
        return 0.0, failures[0].reason
    return len(answered) / (max(answered) - started), None


def _decoded(body: bytes, encoding: str) -> bytes:
    return gzip.decompress(body) if encoding == "gzip" else body
