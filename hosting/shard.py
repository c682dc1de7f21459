"""The shard: a Ray Serve replica that holds some hosts' files and parses them in its engine processes."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ray import serve

from hosting import metrics
from hosting.affinity_router import SLOT_FIELD
from hosting.hot_sessions import HotSessions
from hosting.logs import configure_logs
from hosting.replies import EntryReply, MapReply, RecordReply, as_array
from hosting.settings import Settings, store_options
from hosting.shard_client import ShardClient
from loaders.derived_files import map_key
from loaders.engines import tasks
from loaders.engines.accelerated import AcceleratedEngine
from loaders.engines.pool import EnginePool, session_folder
from loaders.engines.trust import accelerated_binary, accelerated_version, trusted
from loaders.errors import NotFound, ObjectChanged, Overloaded, ProfileError
from loaders.file_cache import DownloadReport, FileCache
from loaders.jobs import ToolJob
from loaders.log_roots import parse_log_roots
from loaders.parser import Parser
from loaders.request_context import request_id
from loaders.result_store import ResultStore
from loaders.sessions import HostFile
from loaders.single_flight import SingleFlight
from loaders.stores import open_store
from loaders.tickets import Ticket, current_ticket, ticket_here
from loaders.tools import Family

_log = logging.getLogger(__name__)
_SELF_TEST_SECONDS = 60.0


class Shard:
    """Answers for the sessions and hosts that the affinity router sends here. One event loop; parsing is elsewhere."""

    def __init__(self, settings: Settings) -> None:
        configure_logs("shard", settings.log_level, settings.state_dir / "logs")
        # Engine processes import their parent's __main__ again, which here is Ray's worker script: a second's work and
        # 60 MB for each, and of no use to them.
        if hasattr(sys.modules["__main__"], "__file__"):
            del sys.modules["__main__"].__file__
        options = store_options()
        self._stores = {root.name: open_store(root.uri, options) for root in parse_log_roots(settings.logdir)}
        self._cache = FileCache(settings.state_dir / "cache", settings.cache_bytes, on_download=_count_download)
        engine_logs = partial(configure_logs, "engine", settings.log_level, settings.state_dir / "logs")
        self._pool = EnginePool(settings.engine_limits, engine_logs)
        accelerated = accelerated_engine(settings, self._cache)
        self._parser = Parser(self._cache, self._pool, lambda root: self._stores[root], accelerated)
        self._engine_key = settings.engine_key
        self._results = ResultStore(settings.results_uri, options, max_bytes=settings.results_bytes)
        self._flight: SingleFlight[tuple[str, memoryview]] = SingleFlight()
        self._hot = HotSessions(settings.engine_processes)
        self._max_waiting = settings.max_waiting
        self._tested: asyncio.Task[None] | None = None
        self._calls: set[str] = set()

    @cached_property
    def _peers(self) -> ShardClient:
        return ShardClient(serve.get_deployment_handle("shard", serve.get_replica_context().app_name))

    def record_replica_metadata(self) -> dict[str, Any]:
        """Tells routers this replica's slot: its rank, which a replacement inherits."""
        rank = serve.get_replica_context().rank
        return {SLOT_FIELD: rank.rank if rank is not None else None}

    async def self_test(self) -> MapReply:
        """Parses a tiny XSpace once, at the first call; later calls get the same answer."""
        if self._tested is None or (self._tested.done() and self._tested.exception() is not None):
            self._tested = asyncio.ensure_future(self._test())
        try:
            await asyncio.shield(self._tested)
        except ProfileError as problem:
            return MapReply(problem)
        return MapReply()

    async def tool_data(self, job: ToolJob, request: str, urgent: bool = True, helping: bool = False) -> RecordReply:
        """The job's record, made now unless the result store has it; one parse for all who ask at once.

        Args:
            urgent: whether a person waits.
            helping: whether the owner of a hot session has handed this on; it is made here, then.
        """
        request_id.set(request)
        current_ticket.set(Ticket(urgent=urgent, wanted=True))
        key = job.key(self._engine_key)
        if helping and key in self._flight:
            # There is no other shard just now: the owner's own call for help has come back to it.
            return RecordReply(key, problem=Overloaded("There is no other shard to help."))
        # What nobody waits for does not count against people.
        waiting = self._flight.urgent if urgent else len(self._flight)
        if key not in self._flight and waiting >= self._max_waiting:
            return RecordReply(
                key, problem=Overloaded(f"{waiting} results are being made or waited for. Try again shortly.")
            )
        try:
            key, data = await self._flight.do(key, lambda: self._find_or_make(job, key, helping))
        except ProfileError as problem:
            metrics.PARSE_FAILURES.labels(job.tool, problem.code).inc()
            if not urgent:
                metrics.PREWARMED.labels("failed").inc()
            _log.log(
                logging.WARNING if urgent else logging.INFO,
                "a result could not be made",
                extra={"work": job.what, "code": problem.code, "reason": str(problem)},
            )
            return RecordReply(key, problem=problem)
        if not urgent:
            metrics.PREWARMED.labels("done").inc()
        return RecordReply(key, record=as_array(data))  # type: ignore[arg-type]

    async def map_host(
        self, job: ToolJob, item: HostFile, family: Family, request: str, urgent: bool = True
    ) -> MapReply:
        """Makes one host's derived files, for a reduce that runs on another shard."""
        request_id.set(request)
        current_ticket.set(Ticket(urgent=urgent, wanted=True))
        try:
            await self._parser.map_host(job, item, family)
        except ProfileError as problem:
            return MapReply(problem)
        return MapReply()

    async def read_entry(self, item: HostFile, family: Family) -> EntryReply:
        """The derived files that `map_host` made, by name."""
        async with self._cache.open_entry(map_key(family, item)) as entry:
            if entry is None:
                return EntryReply()
            paths = sorted(entry.iterdir())
            contents = await asyncio.gather(*(asyncio.to_thread(path.read_bytes) for path in paths))
            return EntryReply({path.name: as_array(data) for path, data in zip(paths, contents, strict=True)})

    async def call(self, identity: str, method: str, *args: Any) -> Any:
        """Calls one of the other methods; `works_on` knows of it until it has ended."""
        self._calls.add(identity)
        try:
            return await getattr(self, method)(*args)
        finally:
            self._calls.discard(identity)

    async def works_on(self, identity: str) -> bool:
        """Whether the call of this identity runs here."""
        return identity in self._calls

    async def metrics(self) -> tuple[str, str]:
        """This replica's name and counts."""
        metrics.CACHE_BYTES.set((await asyncio.to_thread(self._cache.usage)).bytes)
        return f"shard-{serve.get_replica_context().replica_id.unique_id}", metrics.exposition()

    async def _test(self) -> None:
        async with self._cache.scratch() as scratch:
            folder = session_folder(scratch, "self-test")
            await self._pool.run(tasks.self_test, folder, what="the self-test", deadline=_SELF_TEST_SECONDS)

    async def _find_or_make(self, job: ToolJob, key: str, helping: bool) -> tuple[str, memoryview]:
        found = await self._results.get(key)
        if found is not None:
            return key, found.data
        try:
            return await self._make_somewhere(job, key, helping)
        except asyncio.CancelledError:
            metrics.DROPPED.labels(job.tool).inc()
            _log.info("dropped what nobody waits for any more", extra={"work": job.what})
            raise
        except (ObjectChanged, NotFound) as error:
            fresh = await self._relisted(job)
            if fresh == job:
                raise
            _log.info("files changed; making the result from what is there now", extra={"reason": str(error)})
            key = fresh.key(self._engine_key)
            # Until the catalog has seen the change, every request comes this way.
            found = await self._results.get(key)
            return key, found.data if found is not None else await self._make(fresh, key)

    async def _make_somewhere(self, job: ToolJob, key: str, helping: bool) -> tuple[str, memoryview]:
        """Makes the result here, or, when this shard has its hands full with a hot session, on one that helps."""
        with self._hot.making(job.affinity):
            helpers = self._hot.owners(job.affinity) - 1
            if helpers and not helping and self._pool.free <= self._pool.waiting:
                reply = await self._peers.help_with(job, helpers, urgent=ticket_here().urgent)
                if reply.record is not None:
                    metrics.DELEGATED.labels("made").inc()
                    return reply.key, reply.record.data
                metrics.DELEGATED.labels("declined").inc()
            if helping:
                await self._borrow(job)
            return key, await self._make(job, key)

    async def _borrow(self, job: ToolJob) -> None:
        """Brings the owner's conversion of a trace here, so that it need not be made again."""
        if job.family is not Family.TRACE or len(job.hosts) != 1:
            return
        [item] = job.hosts
        if not await self._parser.derived.has_map(job.family, item):
            await self._take_over(job, item, job.family)

    async def _make(self, job: ToolJob, key: str) -> memoryview:
        started = time.monotonic()
        metrics.PARSES_IN_FLIGHT.inc()
        try:
            data = await self._parser.tool_data(job, self._provide)
        finally:
            metrics.PARSES_IN_FLIGHT.dec()
        seconds = time.monotonic() - started
        size = sum(item.file.size for item in job.hosts)
        metrics.PARSE_SECONDS.labels(job.tool).observe(seconds)
        metrics.PARSE_BYTES.labels(job.tool).inc(size)
        record = await self._results.put(key, data)
        metrics.ENGINE_RESULTS.labels(record.header.engine.split()[0], "answered").inc()
        _log.info(
            "made a result",
            extra={
                "work": job.what,
                "seconds": round(seconds, 3),
                "engine": record.header.engine,
                "engine_seconds": record.header.seconds,
                "engine_peak_bytes": record.header.peak_bytes,
                "source_bytes": size,
                "result_bytes": len(record),
            },
        )
        return record.data

    async def _relisted(self, job: ToolJob) -> ToolJob:
        """The job with the files' identities as they are now.

        Raises:
            ProfileError: a file is gone or out of reach.
        """
        store = self._stores[job.root]
        return job.with_files(await asyncio.gather(*(store.head(item.file.uri) for item in job.hosts)))

    async def _provide(self, job: ToolJob, item: HostFile, family: Family) -> None:
        """Brings one host's derived files here: from this machine's cache, by a map here when the session is opened
        whole, else by a map on the shard that owns the host."""
        derived = self._parser.derived
        if await derived.has_map(family, item):
            metrics.MAPS.labels(family.value, "cached").inc()
            return
        if not job.split:
            metrics.MAPS.labels(family.value, "here").inc()
            await self._parser.map_host(job, item, family)
            return
        reply = await self._mapped(job, item, family)
        if reply.problem is not None:
            raise reply.problem
        metrics.MAPS.labels(family.value, "mapped").inc()
        if not await derived.has_map(family, item) and not await self._take_over(job, item, family):
            # The owner changed between the two calls.
            await self._parser.map_host(job, item, family)

    async def _mapped(self, job: ToolJob, item: HostFile, family: Family) -> MapReply:
        """The owner's answer to the call for a map; the call is made again, urgently, when people begin to wait."""
        ticket = ticket_here()
        urgent = ticket.urgent
        calls = {asyncio.ensure_future(self._peers.map_host(job, item, family, urgent=urgent))}
        changed = asyncio.Event()
        ticket.watch(changed.set)
        try:
            while True:
                change = asyncio.ensure_future(changed.wait())
                try:
                    done, _ = await asyncio.wait({*calls, change}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    change.cancel()
                changed.clear()
                for call in calls & done:
                    return call.result()
                if not ticket.wanted:
                    raise asyncio.CancelledError
                if ticket.urgent and not urgent:
                    urgent = True
                    calls.add(asyncio.ensure_future(self._peers.map_host(job, item, family, urgent=True)))
        finally:
            ticket.unwatch(changed.set)
            for call in calls:
                call.cancel()

    async def _take_over(self, job: ToolJob, item: HostFile, family: Family) -> bool:
        """Copies one host's derived files from the shard that owns them; False when it has none."""
        entry = await self._peers.read_entry(job, item, family)
        if not entry.files:
            return False
        async with self._cache.scratch() as scratch:
            folder = scratch / "entry"
            folder.mkdir()
            for name, data in entry.files.items():
                await asyncio.to_thread((folder / Path(name).name).write_bytes, data.data)
            await self._cache.publish_entry(map_key(family, item), folder)
        return True


def accelerated_engine(settings: Settings, cache: FileCache) -> AcceleratedEngine | None:
    """The engine to ask first; None where the settings want none, or it is not installed."""
    binary = accelerated_binary()
    if settings.engine == "xprof" or binary is None:
        return None
    return AcceleratedEngine(
        binary,
        cache.scratch,
        f"xprof-rs {accelerated_version()}",
        trusts=trusted if settings.engine == "auto" else lambda tool, parameters, case: True,
        bounds=settings.accelerated_limits,
        report=lambda outcome: metrics.ENGINE_RESULTS.labels("xprof-rs", outcome).inc(),
    )


def _count_download(report: DownloadReport) -> None:
    metrics.DOWNLOADS.labels(report.outcome).inc()
    metrics.DOWNLOAD_BYTES.inc(report.bytes)
