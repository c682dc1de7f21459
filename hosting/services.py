"""What the HTTP routes work with, made once per gateway replica."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from starlette.requests import HTTPConnection

from hosting import metrics
from hosting.assets import AssetLibrary
from hosting.replies import RecordReply
from hosting.settings import Settings
from loaders.errors import NotFound
from loaders.jobs import ToolJob, inspection_job
from loaders.local_store import LocalStore
from loaders.log_roots import parse_log_roots
from loaders.records import Record
from loaders.result_store import ResultStore
from loaders.sessions import Session, Snapshot
from loaders.stored_file import FILE_SCHEME


class Sessions(Protocol):
    """Where routes get the catalog from."""

    def latest(self) -> Snapshot | None: ...

    async def snapshot(self) -> Snapshot: ...


class Shards(Protocol):
    """Where routes get tool data from when the result store has none."""

    async def tool_data(self, job: ToolJob) -> RecordReply: ...

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

    @cached_property
    def _local_stores(self) -> dict[str, LocalStore]:
        roots = parse_log_roots(self.settings.logdir)
        return {root.name: LocalStore(root.uri) for root in roots if root.uri.startswith(FILE_SCHEME)}

    async def tool_data(self, job: ToolJob) -> tuple[str, Record]:
        """The job's record and its key, from the result store or a shard.

        Raises:
            ProfileError: what the shard says.
        """
        key = job.key(self.settings.engine_key)
        record = await self.results.get(key)
        if record is not None:
            metrics.RESULTS.labels(job.tool, "hit").inc()
            return key, record
        metrics.RESULTS.labels(job.tool, "miss").inc()
        reply = await self.shards.tool_data(job)
        if reply.problem is not None:
            raise reply.problem
        if reply.record is None:
            raise NotFound(f"No data for {job.what}.")
        record = Record(reply.record.data)
        self.results.remember(reply.key, record)
        return reply.key, record

    async def inspection(self, session: Session) -> Mapping[str, Any]:
        """The session's `tools` and `modules`, and the hosts `left_out` with the reasons."""
        _, record = await self.tool_data(await self.up_to_date(inspection_job(session)))
        found: dict[str, Any] = json.loads(record.body("identity"))
        return {**found, "left_out": dict(record.header.left_out)}


def services_of(connection: HTTPConnection) -> Services:
    """The services of the gateway that answers this request."""
    found: Services = connection.app.state.services
    return found
