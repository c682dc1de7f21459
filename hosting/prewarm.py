"""Making the tools of a session before anybody asks for them, when there is nothing more urgent to do."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from hosting.planner import splits
from hosting.replies import RecordReply
from loaders.errors import ProfileError
from loaders.jobs import ToolJob, inspection_job, plan_job
from loaders.records import Record
from loaders.request_context import request_id
from loaders.sessions import Session, Snapshot
from loaders.tools import TOOLS, Family, Tool, canonical_parameters, listed_hosts

_log = logging.getLogger(__name__)

# A default tool comes first: an overview and a trace are what people open, and what they leave makes the others cheap.
_FIRST: Final = ("overview_page", "trace_viewer@")
_WAITING: Final = 200
_REMEMBERED: Final = 2000
_AT_ONCE: Final = 2
_YOUNG_SECONDS: Final = 24 * 3600.0


class MakesToolData(Protocol):
    """The shards, as far as prewarming goes."""

    async def tool_data(self, job: ToolJob, *, urgent: bool = True) -> RecordReply: ...


class Prewarmer:
    """Asks the shards for what sessions offer, one thing at a time per session and never urgently.

    Each session is taken once, as long as its files stay the same. Owned by one event loop; it forgets what it had
    before it when there is more than it will ever get done.
    """

    def __init__(self, shards: MakesToolData, shard_budget_bytes: int) -> None:
        self._shards = shards
        self._budget = shard_budget_bytes
        self._waiting: OrderedDict[str, tuple[Session, Sequence[str] | None]] = OrderedDict()
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._workers: set[asyncio.Task[None]] = set()

    def add(self, session: Session, tools: Sequence[str] | None = None) -> None:
        """Has a session's tools made: the named ones, or all that it offers."""
        mark = inspection_job(session).key(",".join(tools or ()))
        if mark in self._seen:
            return
        self._seen[mark] = None
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        self._waiting[mark] = (session, tools)
        while len(self._waiting) > _WAITING:
            self._waiting.popitem(last=False)
        if len(self._workers) < _AT_ONCE:
            worker = asyncio.ensure_future(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def _work(self) -> None:
        while self._waiting:
            # The youngest first: it is what people look at next.
            _, (session, tools) = self._waiting.popitem(last=True)
            try:
                await self._warm(session, tools)
            except ProfileError as error:
                _log.info("a session was not prewarmed", extra={"session": session.name, "reason": str(error)})
            except Exception:
                _log.exception("prewarming a session failed", extra={"session": session.name})

    async def _warm(self, session: Session, tools: Sequence[str] | None) -> None:
        started = time.monotonic()
        request_id.set(f"prewarm-{uuid.uuid4().hex}")
        split = splits(session, self._budget)
        if tools is None:
            record = await self._made(inspection_job(session, split=split))
            tools = json.loads(record.body("identity"))["tools"] if record is not None else ()
        for tool in _in_order(tools or ()):
            await self._made(default_job(session, tool, split=split))
        _log.info(
            "prewarmed a session",
            extra={"session": session.name, "tools": len(tools or ()), "seconds": round(time.monotonic() - started, 3)},
        )

    async def _made(self, job: ToolJob) -> Record | None:
        reply = await self._shards.tool_data(job, urgent=False)
        return Record(reply.record.data) if reply.record is not None else None


def default_job(session: Session, tool: Tool, *, split: bool) -> ToolJob:
    """What the UI asks for when it opens a tool: the first of the hosts that are offered, which may be all of them."""
    # What a window of 1,500 pixels asks for; once a trace is converted, other widths take little.
    query = {"resolution": "4000"} if tool.family is Family.TRACE else {}
    host = listed_hosts(tool, sorted(item.host for item in session.hosts))[0]
    return plan_job(session, tool, canonical_parameters(tool, query), host, None, split=split)


def arrived(before: Snapshot | None, now: Snapshot, wall: float) -> list[Session]:
    """The sessions that are complete now and were not before; of those that were there at the start, the young ones.

    Args:
        wall: the present, seconds since the epoch.
    """
    known = {session.uri for session in before.sessions if session.complete} if before else set[str]()
    fresh = [session for session in now.sessions if session.complete and session.uri not in known]
    if before is None:
        fresh = [session for session in fresh if wall - session.modified < _YOUNG_SECONDS]
    return sorted(fresh, key=lambda session: session.modified)


def _in_order(names: Iterable[str]) -> list[Tool]:
    """The tools that can be made without further parameters, the default ones first, then family by family."""
    known = [TOOLS[name] for name in names if name in TOOLS and TOOLS[name].family is not Family.HLO]
    return sorted(known, key=lambda tool: (tool.name not in _FIRST, tool.family.value))
