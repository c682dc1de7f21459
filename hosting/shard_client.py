"""Calling shards: by affinity, with further tries when a replica dies or hangs under a call."""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextvars import Context
from dataclasses import replace
from typing import Any, Final

from cachetools import TTLCache
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from hosting.affinity_router import Owners
from hosting.replies import EntryReply, MapReply, RecordReply
from loaders.errors import Overloaded, ShardLost, StoreUnreachable
from loaders.jobs import ToolJob, host_affinity
from loaders.request_context import request_id
from loaders.sessions import HostFile
from loaders.tools import Family

_log = logging.getLogger(__name__)
_PATIENCE_SECONDS: Final = 2.0
_DOUBTS: Final = 2
# One for the owner, one for another that dies with it, as when a machine goes, and one for those that take their place.
_ATTEMPTS: Final = 3
# Until Ray has noticed by itself that a replica hangs, and has replaced it.
_AVOID_SECONDS: Final = 30.0


class ShardClient:
    """The shards as the gateway and the shards themselves see them."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle
        # The keys whose owner hung when it was last called.
        self._silent: TTLCache[str, bool] = TTLCache(maxsize=10_000, ttl=_AVOID_SECONDS)

    async def tool_data(self, job: ToolJob, *, urgent: bool = True) -> RecordReply:
        """A job's record, from the shard that owns the session or its one host, or from the next when that one has more
        to do than it takes on.

        Args:
            urgent: whether a person waits for it.
        """
        reply: RecordReply
        for first in (0, 1):
            owners = Owners(job.affinity, first)
            reply = await self._call(owners, "tool_data", job.what, job, request_id.get(), urgent)
            if not isinstance(reply.problem, Overloaded):
                break
        return reply

    async def help_with(self, job: ToolJob, helpers: int, *, urgent: bool) -> RecordReply:
        """A job's record from one of so many shards after the owner, the least loaded one."""
        owners = Owners(job.affinity, 1, helpers)
        reply: RecordReply = await self._call(owners, "tool_data", job.what, job, request_id.get(), urgent, True)
        return reply

    async def map_host(self, job: ToolJob, item: HostFile, family: Family, *, urgent: bool) -> MapReply:
        """One host's map, on the shard that owns the host."""
        what = f"{family.value} of session '{job.session}', host '{item.host}'"
        owners = Owners(host_affinity(job.session, item.host))
        reply: MapReply = await self._call(owners, "map_host", what, job, item, family, request_id.get(), urgent)
        return reply

    async def read_entry(self, job: ToolJob, item: HostFile, family: Family) -> EntryReply:
        """One host's derived files, from the shard that owns the host, or the session that is opened whole."""
        what = f"the derived files of session '{job.session}', host '{item.host}'"
        owners = Owners(host_affinity(job.session, item.host) if job.split else job.session)
        reply: EntryReply = await self._call(owners, "read_entry", what, item, family)
        return reply

    async def self_test(self) -> None:
        """Returns once a shard has parsed a tiny XSpace.

        Raises:
            ProfileError: it could not.
        """
        reply: MapReply = await self._call(Owners("self-test"), "self_test", "the self-test")
        if reply.problem is not None:
            raise reply.problem

    async def metrics(self) -> dict[str, str]:
        """Every shard's metrics by replica."""
        return await metrics_of(self._handle)

    async def _call(self, owners: Owners, method: str, what: str, *args: Any) -> Any:
        if self._silent.get(owners.key):
            owners = replace(owners, first=owners.first + 1)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._answer(owners, method, *args)
            except RayActorError:
                _log.warning("a shard died under a call", extra={"work": what, "attempt": attempt})
            except _Silent:
                _log.warning("a shard does not answer; asking the next", extra={"work": what, "attempt": attempt})
                self._silent[owners.key] = True
                owners = replace(owners, first=owners.first + 1)
            except _Forgotten:
                _log.warning("a call was lost; making it again", extra={"work": what, "attempt": attempt})
            except BackPressureError:
                raise Overloaded("More requests are waiting than this service accepts. Try again shortly.") from None
            except DeploymentUnavailableError:
                raise StoreUnreachable("No shard is running just now. Try again shortly.", retry_after=5) from None
        raise ShardLost(
            f"The shard that worked on {what} died, and so did those that tried again. Try again; if it happens with "
            f"this profile only, it may need more memory than a shard has."
        )

    async def _answer(self, owners: Owners, method: str, *args: Any) -> Any:
        """The answer to a call; from time to time the owner is asked whether it still works on it.

        Raises:
            _Silent: it does not answer.
            _Forgotten: it knows nothing of the call.
        """
        identity = uuid.uuid4().hex
        response = self._send(owners, "call", identity, method, *args)
        answer = asyncio.ensure_future(_result(response))
        doubts = 0
        try:
            while not (await asyncio.wait({answer}, timeout=_PATIENCE_SECONDS))[0]:
                problem = await self._doubt(owners, identity)
                doubts = doubts + 1 if problem else 0
                if problem and doubts == _DOUBTS and not answer.done():
                    raise problem
            return answer.result()
        finally:
            if not answer.done():
                # Ray goes on with a call whose caller has gone, unless told.
                response.cancel()
                answer.cancel()

    def _send(self, owners: Owners, method: str, *args: Any) -> Any:
        """Makes a call outside of the request's context: Ray cancels all calls made in it when the request's client
        goes, while others may wait for the same one. Who waits is for our own tickets to say."""
        handle = self._handle.options(session_id=owners.encode(), method_name=method)
        return Context().run(handle.remote, *args)

    async def _doubt(self, owners: Owners, identity: str) -> Exception | None:
        """What speaks against waiting on for a call, if anything does."""
        response = self._send(replace(owners, strict=True), "works_on", identity)
        try:
            known: bool = await asyncio.wait_for(_result(response), _PATIENCE_SECONDS)
        except TimeoutError:
            response.cancel()
            return _Silent()
        except (RayActorError, BackPressureError, DeploymentUnavailableError):
            # The owner is away, which the call itself will tell.
            return None
        # Of several owners, another one may have been asked.
        return None if known or owners.count > 1 else _Forgotten()


class _Silent(Exception):
    """A shard does not answer."""


class _Forgotten(Exception):
    """A call or its answer was lost on the way."""


async def _result(response: Any) -> Any:
    return await response


async def metrics_of(handle: DeploymentHandle[Any]) -> dict[str, str]:
    """The metrics of all replicas of a deployment, by replica; none while one of them is just dying."""
    try:
        texts = await handle.broadcast("metrics").results_async(timeout_s=5)
    except (RayActorError, TimeoutError) as error:
        _log.warning("not all replicas gave their metrics", extra={"reason": str(error)[:200]})
        return {}
    return dict(texts)
