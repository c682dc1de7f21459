"""What the HTTP routes work with, made once per gateway replica."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from starlette.requests import HTTPConnection

from hosting import metrics
from hosting.assets import AssetLibrary
from hosting.planner import Plan, plan_session, splits
from hosting.prewarm import Prewarmer
from hosting.replies import RecordReply
from hosting.settings import Settings
from hosting.waiting_client import while_client_waits
from loaders.errors import NotFound
from loaders.jobs import ToolJob, inspection_job
from loaders.local_store import LocalStore
from loaders.log_roots import parse_log_roots
from loaders.records import Record
from loaders.result_store import ResultStore
from loaders.sessions import Session, Snapshot
from loaders.single_flight import SingleFlight
from loaders.stored_file import FILE_SCHEME

_log = logging.getLogger(__name__)


class Sessions(Protocol):
    """Where routes get the catalog from."""

    def latest(self) -> Snapshot | None: ...

    async def snapshot(self) -> Snapshot: ...


class Shards(Protocol):
    """Where routes get tool data from when the result store has none."""

    async def tool_data(self, job: ToolJob, *, urgent: bool = True) -> RecordReply: ...

    async def self_test(self) -> None: ...

    async def metrics(self) -> dict[str, str]: ...


@dataclass(frozen=True)
class Services:
    """A gateway's collaborators."""

    settings: Settings
    assets: AssetLibrary
    sessions: Sessions
    shards: Shards
    results: ResultStore
    name: str = "gateway"
    """This replica's, as `/metrics` has it."""
    gateways: Callable[[], Awaitable[Mapping[str, str]]] | None = None
    """Gives the metrics of all gateway replicas, where there are others."""
    flights: SingleFlight[RecordReply] = field(default_factory=lambda: SingleFlight(cancels=True))
    """The calls of shards under way: one for all who wait for the same result, cancelled when all have gone."""

    async def up_to_date(self, job: ToolJob) -> ToolJob:
        """The job with local files as they are at this moment, so that a file changed since the last listing is not
        answered for from an older result. Files in buckets are as the catalog last saw them.

        Raises:
            NotFound: a file is gone, or is a link out of its log root by now.
            AccessDenied, StoreUnreachable: it can't be read.
        """
        store = self._local_stores.get(job.root)
        if store is None:
            return job
        return job.with_files(await asyncio.to_thread(lambda: [store.look(item.file.uri) for item in job.hosts]))

    def split(self, session: Session) -> bool:
        """Whether the session is opened by host, on several shards."""
        return splits(session, self.settings.shard_budget_bytes)

    def plan(self, session: Session) -> Plan:
        """How the session is opened, in full."""
        return plan_session(session, self.settings.shard_budget_bytes, self.settings.shards)

    @cached_property
    def prewarmer(self) -> Prewarmer:
        """What makes tools before anybody asks."""
        return Prewarmer(self.shards, self.settings.shard_budget_bytes)

    def follow(self, session: Session) -> None:
        """Somebody has opened a tool of this session that had to be made: the others are made, too, unless that is
        switched off."""
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("plan", extra={"session": session.name, **self.plan(session).log_fields()})
        if self.settings.prewarm != "off":
            self.prewarmer.add(session)

    @cached_property
    def _local_stores(self) -> dict[str, LocalStore]:
        roots = parse_log_roots(self.settings.logdir)
        return {root.name: LocalStore(root.uri) for root in roots if root.uri.startswith(FILE_SCHEME)}

    async def tool_data(self, job: ToolJob, session: Session | None = None) -> tuple[str, Record]:
        """The job's record and its key, from the result store or a shard.

        Args:
            session: the one whose tool this is, where somebody opens it.

        Raises:
            ProfileError: what the shard says.
            ClientGone: the request's client has gone meanwhile.
        """
        key = job.key(self.settings.engine_key)
        record = await self.results.get(key)
        if record is not None:
            metrics.RESULTS.labels(job.tool, "hit").inc()
            return key, record
        metrics.RESULTS.labels(job.tool, "miss").inc()
        reply = await while_client_waits(self.flights.do(key, lambda: self.shards.tool_data(job)))
        if reply.problem is not None:
            raise reply.problem
        if reply.record is None:
            raise NotFound(f"No data for {job.what}.")
        record = Record(reply.record.data)
        self.results.remember(reply.key, record)
        if session is not None:
            self.follow(session)
        return reply.key, record

    async def inspection(self, session: Session) -> Mapping[str, Any]:
        """The session's `tools` and `modules`, and the hosts `left_out` with the reasons."""
        job = inspection_job(session, split=self.split(session))
        _, record = await self.tool_data(await self.up_to_date(job))
        found: dict[str, Any] = json.loads(record.body("identity"))
        return {**found, "left_out": dict(record.header.left_out)}


def services_of(connection: HTTPConnection) -> Services:
    """The services of the gateway that answers this request."""
    found: Services = connection.app.state.services
    return found
