"""Calling shards: by affinity, with one more try when a replica dies under a call."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from hosting.replies import EntryReply, MapReply, RecordReply
from loaders.errors import Overloaded, ShardLost, StoreUnreachable
from loaders.jobs import ToolJob, host_affinity
from loaders.request_context import request_id
from loaders.sessions import HostFile
from loaders.tools import Family

_log = logging.getLogger(__name__)


class ShardClient:
    """The shards as the gateway and the shards themselves see them."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle

    async def tool_data(self, job: ToolJob) -> RecordReply:
        """A job's record, from the shard that owns the session or its one host."""
        reply: RecordReply = await self._call(job.affinity, "tool_data", job.what, job, request_id.get())
        return reply

    async def map_host(self, job: ToolJob, item: HostFile, family: Family) -> MapReply:
        """One host's map, on the shard that owns the host."""
        what = f"{family.value} of session '{job.session}', host '{item.host}'"
        affinity = host_affinity(job.session, item.host)
        reply: MapReply = await self._call(affinity, "map_host", what, job, item, family, request_id.get())
        return reply

    async def read_entry(self, job: ToolJob, item: HostFile, family: Family) -> EntryReply:
        """One host's derived files, from the shard that owns the host."""
        what = f"the derived files of session '{job.session}', host '{item.host}'"
        reply: EntryReply = await self._call(host_affinity(job.session, item.host), "read_entry", what, item, family)
        return reply

    async def self_test(self) -> None:
        """Returns once a shard has parsed a tiny XSpace.

        Raises:
            ProfileError: it could not.
        """
        reply: MapReply = await self._call("self-test", "self_test", "the self-test")
        if reply.problem is not None:
            raise reply.problem

    async def metrics(self) -> dict[str, str]:
        """Every shard's metrics by replica."""
        return await metrics_of(self._handle)

    async def _call(self, affinity: str, method: str, what: str, *args: Any) -> Any:
        for attempt in (1, 2):
            try:
                call = self._handle.options(session_id=affinity, method_name=method).remote(*args)
                return await call
            except asyncio.CancelledError:
                # Nobody waits any longer; the shard would not learn of it by itself.
                call.cancel()  # type: ignore[no-untyped-call, unused-ignore]
                raise
            except RayActorError:
                _log.warning("a shard died under a call", extra={"work": what, "attempt": attempt})
            except BackPressureError:
                raise Overloaded("More requests are waiting than this service accepts. Try again shortly.") from None
            except DeploymentUnavailableError:
                raise StoreUnreachable("No shard is running just now. Try again shortly.", retry_after=5) from None
        raise ShardLost(
            f"The shard that worked on {what} died, and so did the one that tried again. The profile may need more "
            f"memory than a shard has; the next request starts afresh."
        )


async def metrics_of(handle: DeploymentHandle[Any]) -> dict[str, str]:
    """The metrics of all replicas of a deployment, by replica; none while one of them is just dying."""
    try:
        texts = await handle.broadcast("metrics").results_async(timeout_s=5)
    except (RayActorError, TimeoutError) as error:
        _log.warning("not all replicas gave their metrics", extra={"reason": str(error)[:200]})
        return {}
    return dict(texts)
