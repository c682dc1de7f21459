"""The catalog as a replica of its own, and the gateways' view of it.

One process lists the log roots, however many gateways there are; each gateway holds the last snapshot and waits for the
next one in the background, so that no request ever waits for a listing.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from contextlib import suppress
from typing import Any, Final

from ray.exceptions import RayActorError
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from hosting.logs import configure_logs
from hosting.prewarm import Prewarmer, arrived
from hosting.settings import Settings, store_options
from hosting.shard_client import ShardClient
from loaders.catalog import Catalog
from loaders.errors import StoreUnreachable
from loaders.log_roots import parse_log_roots
from loaders.sessions import Snapshot

_log = logging.getLogger(__name__)
_POLL_SECONDS: Final = 0.2
_WAIT_SECONDS: Final = 10.0
_FIRST_SECONDS: Final = 3.0
_TOUCH_EVERY: Final = 2.0


class CatalogService:
    """The deployment that owns the catalog. One replica."""

    def __init__(self, settings: Settings, shards: DeploymentHandle[Any]) -> None:
        configure_logs("catalog", settings.log_level, settings.state_dir / "logs")
        self._prewarms = settings.prewarm == "all"
        self._prewarmer = Prewarmer(ShardClient(shards), settings.shard_budget_bytes)
        self._catalog = Catalog(
            parse_log_roots(settings.logdir),
            store_options(),
            local_interval=settings.local_interval,
            bucket_interval=settings.bucket_interval,
        )
        self._started: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._mark = uuid.uuid4().hex

    async def newer(self, seen: tuple[str, int] | None) -> tuple[str, Snapshot] | None:
        """This replica's mark and its snapshot, once the first pass is over and they are not those `seen`; None after
        10 s. A replacement counts versions from the start, so a version means something under its mark only."""
        if self._started is None:
            self._started = asyncio.ensure_future(self._catalog.start())
            if self._prewarms:
                self._following = asyncio.ensure_future(self._prewarm_arrivals())
        await asyncio.shield(self._started)
        deadline = time.monotonic() + _WAIT_SECONDS
        # A log root that takes long must not keep the others from being shown at start; a gateway that has seen all of
        # them keeps what it has until a replacement of this replica has, too.
        with suppress(TimeoutError):
            await asyncio.wait_for(self._catalog.ready(), _FIRST_SECONDS if seen is None else None)
        snapshot = self._catalog.snapshot()
        while (self._mark, snapshot.version) == seen:
            if time.monotonic() > deadline:
                return None
            await asyncio.sleep(_POLL_SECONDS)
            snapshot = self._catalog.snapshot()
        return self._mark, snapshot

    async def _prewarm_arrivals(self) -> None:
        """Has the tools of every session made that is complete, as they arrive."""
        await self._catalog.ready()
        before: Snapshot | None = None
        while True:
            now = self._catalog.snapshot()
            if before is None or now.version != before.version:
                for session in arrived(before, now, time.time()):
                    self._prewarmer.add(session)
                before = now
            await asyncio.sleep(_POLL_SECONDS)

    async def touch(self) -> None:
        """Somebody looks: listings go back to their normal pace."""
        self._catalog.touch()


class CatalogView:
    """A gateway's copy of the catalog, kept fresh in the background."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle
        self._snapshot: Snapshot | None = None
        self._arrived = asyncio.Event()
        self._touched = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begins to follow the catalog."""
        self._keep(self._follow())

    def latest(self) -> Snapshot | None:
        """The snapshot at hand, or None before the first."""
        return self._snapshot

    async def snapshot(self) -> Snapshot:
        """The snapshot at hand; right after start, the first one once it is there.

        Raises:
            StoreUnreachable: the first listing takes longer than half a minute.
        """
        self._touch()
        if self._snapshot is None:
            try:
                await asyncio.wait_for(self._arrived.wait(), 30)
            except TimeoutError:
                raise StoreUnreachable(
                    "The log roots are still being listed for the first time. Try again shortly.", retry_after=5
                ) from None
        if self._snapshot is None:
            raise StoreUnreachable("The catalog is not there yet. Try again shortly.", retry_after=5)
        return self._snapshot

    def _touch(self) -> None:
        now = time.monotonic()
        if now - self._touched > _TOUCH_EVERY:
            self._touched = now
            self._keep(self._send_touch())

    def _keep(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_touch(self) -> None:
        try:
            await self._handle.touch.remote()
        except (RayActorError, DeploymentUnavailableError) as error:
            _log.warning("the catalog did not hear that somebody looks", extra={"reason": str(error)[:200]})

    async def _follow(self) -> None:
        seen: tuple[str, int] | None = None
        while True:
            try:
                found: tuple[str, Snapshot] | None = await self._handle.newer.remote(seen)
            except Exception as error:
                # Whatever it is, a gateway that stopped following would show old sessions for ever.
                _log.warning("the catalog's replica is away", extra={"reason": str(error)[:200]})
                await asyncio.sleep(1)
                continue
            if found is not None:
                mark, snapshot = found
                seen = mark, snapshot.version
                self._snapshot = snapshot.prepare()
                self._arrived.set()
