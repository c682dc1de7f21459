"""The accelerated engine, xprof-rs: asked first where it is trusted, never needed.

It is a server that keeps what it has read in memory, so one process answers for many sets of files, each linked into a
folder of its own that stays for as long as the set is asked about. Whatever goes wrong with it is no error but a None:
the caller then asks the reference engine, and the set, or the tool of the set, is not tried here again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Literal

from cachetools import LRUCache

from loaders.engines.accelerated_server import AcceleratedServer, LimitPassed, Reply, ServerDied
from loaders.engines.tasks import XPLANE_SUFFIX
from loaders.engines.trust import case_of
from loaders.errors import DiskFull, InvalidProfile, ProfileTooLarge
from loaders.tools import ALL_HOSTS
from loaders.unbroken import in_thread
from loaders.xspace_scan import scan_xspace

_BYTES_PER_BYTE: Final = 6
"""What reading a file takes, in bytes of memory per byte of the file; measured as 3 to 4, documented as 4 to 6."""
_BASE_BYTES: Final = 64 << 20
_log = logging.getLogger(__name__)

Parameters = Sequence[tuple[str, str]]
Outcome = Literal["refused", "failed"]


@dataclass(frozen=True, slots=True)
class AcceleratedLimits:
    """What the process may use. It is killed when it passes one of these, and started again when it is next needed."""

    deadline: float = 15.0
    """Seconds for one answer: it takes one for some 300 MB, and whoever waits for it in vain has yet to wait for the
    reference engine."""
    memory_bytes: int = 16 << 30
    """Resident bytes while it works; a file that would need more is not brought here."""
    several_bytes: int = 2 << 30
    """The same for several files together, which the reference engine can take one by one."""
    idle_bytes: int = 1 << 30
    """Resident bytes that it may keep afterwards."""
    sets: int = 64
    """Sets of files whose links are kept."""


@dataclass(frozen=True, slots=True)
class LinkedHost:
    """One host's file as this machine has it."""

    host: str
    identity: str
    """The content's, as `StoredFile.identity`."""
    path: Path


@dataclass(frozen=True, slots=True)
class Answer:
    """Tool data."""

    data: bytes
    gzip_data: bytes | None
    content_type: str
    seconds: float
    peak_bytes: int


@dataclass(slots=True)
class _Set:
    """Files that are asked about together, and what is known of them."""

    folder: Path
    tools: tuple[str, ...] | None = None
    """None until the engine has said which tools it offers for them."""
    refused: set[tuple[object, ...]] = field(default_factory=set)
    """Requests that it does not answer."""


class AcceleratedEngine:
    """One process of the accelerated engine, started when it is first needed. Owned by one shard, on one event loop."""

    def __init__(
        self,
        binary: Path,
        scratch: Callable[[], AbstractAsyncContextManager[Path]],
        name: str,
        *,
        trusts: Callable[[str, Parameters, str | None], bool],
        bounds: AcceleratedLimits | None = None,
        report: Callable[[Outcome], None] = lambda outcome: None,
    ) -> None:
        """Starts nothing yet.

        Args:
            binary: the program.
            scratch: gives a folder of our own for as long as its block runs, as `FileCache.scratch`.
            name: the engine's name and version, as records have it.
            trusts: which tools and parameters are to be asked here in a case, as `trust.trusted`.
            report: told of every answer that it did not give, by refusing or by failing.
        """
        self.name = name
        self.bounds = bounds or AcceleratedLimits()
        self._binary = binary
        self._scratch = scratch
        self._trusts = trusts
        self._report = report
        self._stack = AsyncExitStack()
        self._root: Path | None = None
        self._server: AcceleratedServer | None = None
        self._sets: OrderedDict[str, _Set] = OrderedDict()
        # Keys of sets that were refused, or brought the process down; a set of one file stands for that file.
        self._refused: LRUCache[str, bool] = LRUCache(maxsize=10_000)
        # The names of the planes of files that a scan has found whole.
        self._planes: LRUCache[str, tuple[str, ...]] = LRUCache(maxsize=10_000)
        # One call at a time: so it is known which files cost the memory, and who is to blame for a crash. What is
        # fast enough to be asked first does not make others wait for long.
        self._lock = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The running process; None when there is none."""
        return self._server.pid if self._server is not None else None

    def takes(self, tool: str, parameters: Parameters, identities: Sequence[str], size: int) -> bool:
        """Whether it may be worth asking here: it is trusted in some case, has refused none of the files, and `size`
        bytes are not too many."""
        budget = self.bounds.memory_bytes
        if len(identities) > 1:
            budget = min(budget, self.bounds.several_bytes)
        if not identities or size * _BYTES_PER_BYTE + _BASE_BYTES > budget:
            return False
        if any(key in self._refused for key in (*identities, _key(identities))):
            return False
        known = self._sets.get(_key(identities))
        if known is not None and (tool, *parameters) in known.refused:
            return False
        return self._trusts(tool, parameters, None)

    async def answer(self, tool: str, parameters: Parameters, hosts: Sequence[LinkedHost]) -> Answer | None:
        """The tool's data of these hosts together; None when it is not trusted with them, refuses or fails.

        It is never asked about a file that is not a whole XSpace: about those only the reference engine's words count.
        The files must stay while this runs.

        Raises:
            NotFound, AccessDenied, ObjectChanged, StoreUnreachable: a file can't be read.
        """
        identities = [item.identity for item in hosts]
        started = time.monotonic()
        try:
            case = case_of([await self._planes_of(item) for item in hosts])
        except (InvalidProfile, ProfileTooLarge):
            return None
        if not self._trusts(tool, parameters, case):
            return None
        async with self._lock:
            if not self.takes(tool, parameters, identities, 0):
                # Refused while we waited.
                return None
            try:
                files = await self._linked(hosts)
                answer = await self._ask(files, tool, parameters, hosts, started)
            except (ServerDied, LimitPassed) as error:
                _log.warning("the accelerated engine failed", extra={"tool": tool, "reason": str(error)})
                self._forget(identities, "failed")
                await self._stop()
                return None
            except (OSError, DiskFull) as error:
                _log.warning("the accelerated engine could not be given files", extra={"reason": str(error)})
                return None
            except BaseException:
                await self._stop()
                raise
            if answer is None:
                if files.tools:
                    files.refused.add((tool, *parameters))
                    self._report("refused")
                else:
                    self._forget(identities, "refused")
            if self._server is not None and self._server.resident_bytes() > self.bounds.idle_bytes:
                await self._stop()
            return answer

    async def close(self) -> None:
        """Ends the process and removes the links."""
        async with self._lock:
            await self._stop()
            self._sets.clear()
            self._root = None
            await self._stack.aclose()

    async def _ask(
        self, files: _Set, tool: str, parameters: Parameters, hosts: Sequence[LinkedHost], started: float
    ) -> Answer | None:
        peak = 0
        if files.tools is None:
            # First of all, even when only one tool is wanted: a file that it can't read shows as an empty list here,
            # while some tools answer for it with empty tables.
            reply = await self._get(files, "run_tools", {})
            peak = reply.peak_bytes
            files.tools = _tools(reply)
        if not files.tools:
            return None
        host = hosts[0].host if len(hosts) == 1 else ALL_HOSTS
        reply = await self._get(files, "data", {"tag": tool, "host": host, **dict(parameters)})
        if reply.status != 200 or not reply.body:
            _log.info(
                "the accelerated engine refused",
                extra={"tool": tool, "status": reply.status, "reason": reply.body[:200].decode(errors="replace")},
            )
            return None
        peak = max(peak, reply.peak_bytes)
        return Answer(reply.body, reply.gzip_body, reply.content_type, time.monotonic() - started, peak)

    async def _get(self, files: _Set, path: str, query: dict[str, str]) -> Reply:
        """Asks the process, and a fresh one when it turns out to be dead: it need not have died of this."""
        given = {"session_path": str(files.folder), "run": files.folder.name, **query}
        limits = self.bounds.deadline, self.bounds.memory_bytes
        if self._server is not None:
            try:
                return await self._server.get(path, given, *limits)
            except ServerDied as error:
                await self._stop()
                _log.info("the accelerated engine was gone; starting it again", extra={"reason": str(error)})
        self._server = await AcceleratedServer.start(self._binary, files.folder.parent)
        return await self._server.get(path, given, *limits)

    async def _planes_of(self, item: LinkedHost) -> tuple[str, ...]:
        planes = self._planes.get(item.identity)
        if planes is None:
            planes = self._planes[item.identity] = (await in_thread(partial(scan_xspace, item.path))).planes
        return planes

    async def _linked(self, hosts: Sequence[LinkedHost]) -> _Set:
        """The set's folder. No `plugins/profile` in its path: what is found there, the engine loads unasked."""
        key = _key([item.identity for item in hosts])
        if self._root is None:
            self._root = await self._stack.enter_async_context(self._scratch())
        known = self._sets.get(key)
        if known is None:
            known = _Set(self._root / key)
            await in_thread(partial(_link, known.folder, hosts))
            self._sets[key] = known
        self._sets.move_to_end(key)
        if len(self._sets) > self.bounds.sets:
            _, oldest = self._sets.popitem(last=False)
            await in_thread(partial(shutil.rmtree, oldest.folder, ignore_errors=True))
        return known

    def _forget(self, identities: Sequence[str], outcome: Outcome) -> None:
        self._refused[_key(identities)] = True
        _log.info("the accelerated engine %s; these files are the reference engine's", outcome)
        self._report(outcome)

    async def _stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop()


def _key(identities: Sequence[str]) -> str:
    """The set's name; a single file's is its identity."""
    if len(identities) == 1:
        return identities[0]
    return hashlib.sha256("\0".join(identities).encode()).hexdigest()


def _link(folder: Path, hosts: Sequence[LinkedHost]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for item in hosts:
        (folder / f"{item.host}{XPLANE_SUFFIX}").symlink_to(item.path)


def _tools(reply: Reply) -> tuple[str, ...]:
    if reply.status != 200:
        return ()
    try:
        found = json.loads(reply.body)
    except ValueError:
        return ()
    return tuple(str(name) for name in found) if isinstance(found, list) else ()
