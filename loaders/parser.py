"""Turning host files into tool data on this machine: file cache → engine process → record.

Every engine call works in a scratch folder of its own, with links to what it needs; nothing is shared between calls and
nothing is left behind by one that dies.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from cachetools import LRUCache

from loaders.derived_files import DerivedFiles, map_key, map_output
from loaders.engines import tasks
from loaders.engines.accelerated import AcceleratedEngine, LinkedHost
from loaders.engines.pool import EnginePool, session_folder
from loaders.errors import BadParameter, DiskFull, InvalidProfile, NotFound, ProfileTooLarge
from loaders.file_cache import FileCache
from loaders.host_files import HostFiles, check_size, check_unchanged
from loaders.jobs import ToolJob
from loaders.records import RecordHeader, record_bytes
from loaders.sessions import HostFile
from loaders.single_flight import SingleFlight
from loaders.stores import Store
from loaders.tools import INSPECTION, Family, order_tools
from loaders.trace_blocks import TraceBlocks

_log = logging.getLogger(__name__)

Provide = Callable[[ToolJob, HostFile, Family], Awaitable[None]]
"""Sees to it that a host's derived files of a family are in this machine's file cache."""


class Parser:
    """Makes tool data. Owned by one shard; safe for many calls at once on one event loop."""

    def __init__(
        self,
        cache: FileCache,
        pool: EnginePool,
        store_of: Callable[[str], Store],
        accelerated: AcceleratedEngine | None = None,
    ) -> None:
        """`store_of` gives the store of a log root's name; the accelerated engine, if any, is asked before the pool."""
        self.cache = cache
        self.derived = DerivedFiles(cache)
        self.files = HostFiles(cache, store_of)
        self.blocks = TraceBlocks(cache, self.derived, pool)
        self._pool = pool
        self._accelerated = accelerated
        self._maps: SingleFlight[None] = SingleFlight()
        # Identities of files that a scan has found whole.
        self._sound: LRUCache[str, bool] = LRUCache(maxsize=10_000)

    async def inspect(self, job: ToolJob, provide: Provide | None = None) -> tuple[tasks.Inspection, dict[str, str]]:
        """The tools and modules of the job's hosts together, and the hosts left out with the reasons.

        Raises:
            ProfileError: no host's file can be read; the first one's error.
        """
        good, left_out = await self._provide_all(job, Family.HLO, provide or self.map_host)
        tools: list[str] = []
        modules: set[str] = set()
        for item in good:
            found = await self.derived.inspection(item)
            tools += [tool for tool in found.tools if tool not in tools]
            modules |= set(found.modules)
        return tasks.Inspection(tuple(tools), tuple(sorted(modules))), left_out

    async def map_host(self, job: ToolJob, item: HostFile, family: Family) -> None:
        """Makes one host's derived files of a family, unless they are there.

        Raises:
            ProfileError: the file can't be had or can't be parsed.
        """

        async def work() -> None:
            if not await self.derived.has_map(family, item):
                await self._map(job, item, family)

        await self._maps.do(map_key(family, item), work)

    async def tool_data(self, job: ToolJob, provide: Provide | None = None) -> bytes:
        """Makes the job's answer, as a record's bytes.

        Args:
            provide: how a host's derived files get here where several hosts take part; by parsing here unless given.

        Raises:
            ProfileError: what went wrong, in words for the user.
        """
        provide = provide or self.map_host
        if job.tool == INSPECTION.name:
            # By the reference in any case: it looks at no events for this, which is quicker still.
            return await self._inspection_record(job, provide)
        if self._accelerated is not None:
            record = await self._from_accelerated(job, self._accelerated)
            if record is not None:
                return record
        if job.family is Family.HLO:
            return await self._from_hlo(job, provide)
        if job.family is Family.FILES or len(job.hosts) == 1:
            return await self._from_files(job)
        return await self._from_maps(job, provide)

    async def _from_accelerated(self, job: ToolJob, engine: AcceleratedEngine) -> bytes | None:
        """The accelerated engine's answer; None where the reference engine is to give it."""
        identities = [item.file.identity for item in job.hosts]
        if not engine.takes(job.tool, job.parameters, identities, sum(item.file.size for item in job.hosts)):
            return None
        async with AsyncExitStack() as stack:
            try:
                paths = await self.files.open(stack, job, job.hosts)
            except (ProfileTooLarge, DiskFull):
                # Such a host may be left out, or mapped by itself.
                return None
            pairs = zip(job.hosts, paths, strict=True)
            linked = [LinkedHost(item.host, item.file.identity, path) for item, path in pairs]
            answer = await engine.answer(job.tool, job.parameters, linked)
            if answer is None:
                return None
            await asyncio.to_thread(check_unchanged, job.hosts)
        size = len(answer.data)
        header = RecordHeader(
            answer.content_type, size, engine.name, seconds=answer.seconds, peak_bytes=answer.peak_bytes
        )
        return await asyncio.to_thread(record_bytes, answer.data, header, gzip_body=answer.gzip_data)

    async def _map(self, job: ToolJob, item: HostFile, family: Family) -> None:
        async with AsyncExitStack() as stack:
            scratch = await stack.enter_async_context(self.cache.scratch())
            folder = session_folder(scratch, _folder_name(job))
            await self.files.link(stack, job, [item], folder)
            what = f"{family.value} of session '{job.session}', host '{item.host}'"
            found: tasks.Inspection | None = None
            if family is Family.HLO:
                task = self._task(INSPECTION.name, (), job, [item], folder)
                found = await self._pool.run(tasks.inspect, task, what=what)
            elif family is Family.OP_STATS:
                task = self._task("overview_page", (), job, [item], folder)
                await self._pool.run(tasks.map_op_stats, task, what=what)
            else:
                task = self._task("trace_viewer@", (), job, [item], folder)
                await self._pool.run(tasks.tool_data, task, what=what)
            await asyncio.to_thread(check_unchanged, [item])
            self._sound[item.file.identity] = True
            await self.derived.keep_map(family, item, folder, found)
            _log.info("mapped a host", extra={"work": what, "source_bytes": item.file.size})

    async def _from_files(self, job: ToolJob, left_out: dict[str, str] | None = None) -> bytes:
        """One engine call on the files themselves, using and keeping derived files where there is one host.

        Args:
            left_out: hosts that are not in the job any more, with the reasons.
        """
        async with AsyncExitStack() as stack:
            scratch = await stack.enter_async_context(self.cache.scratch())
            folder = session_folder(scratch, _folder_name(job))
            hosts = list(job.hosts)
            if dict(job.parameters).get("names_only") == "1":
                hosts = []
            elif job.tolerant:
                hosts, left_out = await self._sound_hosts(job)
            saved = await self.derived.link_own(stack, job.family, job.tool, hosts, folder)
            # A converted trace answers by itself, be the file here or not.
            converted = saved and job.family is Family.TRACE
            if converted:
                (folder / f"{hosts[0].host}{tasks.XPLANE_SUFFIX}").touch()
                await self.blocks.link(stack, job, hosts, folder)
            else:
                await self.files.link(stack, job, hosts, folder)
            task = self._task(
                job.tool, job.parameters, job, hosts, folder, saved=saved, left_out=left_out, scanned=converted
            )
            data = await self._run(task, scratch, job)
            await asyncio.to_thread(check_unchanged, hosts)
            for item in hosts:
                self._sound[item.file.identity] = True
            if not saved:
                try:
                    await self.derived.keep_own(job.family, job.tool, hosts, folder)
                    if job.family is Family.TRACE:
                        self.blocks.make_later(job, hosts[0])
                except DiskFull as error:
                    # The answer is at hand; only the next tool will have to parse again.
                    _log.warning("no room to keep what was derived", extra={"work": job.what, "reason": str(error)})
            return data

    async def _from_maps(self, job: ToolJob, provide: Provide) -> bytes:
        """A reduce over the hosts' map outputs; the XPlane files stay away unless the tool re-reads them."""
        async with AsyncExitStack() as stack:
            scratch = await stack.enter_async_context(self.cache.scratch())
            folder = session_folder(scratch, _folder_name(job))
            good, left_out = await self._provide_all(job, job.family, provide)
            if len(good) == 1:
                # xprof reduces nothing where there is one host, but reads its file.
                return await self._from_files(replace(job, hosts=tuple(good), tolerant=False), left_out)
            # Without saved results xprof clears its folder of op stats first, so their maps lie elsewhere; with them it
            # would not reduce, but parse every file itself. A trace's reduce only ever reads saved tables.
            saved = job.family is Family.TRACE
            maps = folder if saved else scratch / "maps"
            maps.mkdir(exist_ok=True)
            facts = {item: await self.derived.link_map(stack, job.family, item, maps) for item in good}
            again: list[HostFile] = []
            if job.tool == "overview_page" and not all(known and known.is_training for known in facts.values()):
                # Not in training: xprof reads every XSpace again, for the latency of inference requests.
                again = [item for item, known in facts.items() if known is None or known.may_have_requests]
                await self.files.link(stack, job, again, folder)
            for item in good:
                if item not in again:
                    (folder / f"{item.host}{tasks.XPLANE_SUFFIX}").touch()
            if job.family is Family.TRACE:
                await self.blocks.link(stack, job, good, folder)
            outputs = {item.host: maps / map_output(job.family, item) for item in good}
            task = self._task(
                job.tool,
                job.parameters,
                job,
                good,
                folder,
                saved=saved,
                map_outputs=outputs,
                left_out=left_out,
                scanned=True,
            )
            data = await self._run(task, scratch, job)
            await asyncio.to_thread(check_unchanged, good)
            return data

    async def _inspection_record(self, job: ToolJob, provide: Provide) -> bytes:
        inspection, left_out = await self.inspect(job, provide)
        data = json.dumps({"tools": order_tools(inspection.tools), "modules": inspection.modules}).encode()
        header = RecordHeader("application/json", len(data), tasks.ENGINE, left_out)
        return await asyncio.to_thread(record_bytes, data, header)

    async def _from_hlo(self, job: ToolJob, provide: Provide) -> bytes:
        inspection, left_out = await self.inspect(job, provide)
        given = dict(job.parameters)
        module = given.get("module_name")
        if module is None and "program_id" not in given:
            raise BadParameter(
                f"{job.tool} needs 'module_name'. Modules of session '{job.session}': {_few(inspection.modules)}."
            )
        if module is not None and module not in inspection.modules:
            raise NotFound(
                f"There is no module '{module}' in session '{job.session}'. Its modules: {_few(inspection.modules)}."
            )
        async with AsyncExitStack() as stack:
            scratch = await stack.enter_async_context(self.cache.scratch())
            folder = session_folder(scratch, _folder_name(job))
            good = [item for item in job.hosts if item.host not in left_out]
            for item in good:
                await self.derived.link_map(stack, Family.HLO, item, folder)
                (folder / f"{item.host}{tasks.XPLANE_SUFFIX}").touch()
            task = self._task(job.tool, job.parameters, job, good, folder, saved=True, left_out=left_out, scanned=True)
            return await self._run(task, scratch, job)

    async def _run(self, task: tasks.ToolTask, scratch: Path, job: ToolJob) -> bytes:
        record = scratch / "record"
        await self._pool.run(tasks.tool_data, replace(task, record=record), what=job.what)
        return await asyncio.to_thread(record.read_bytes)

    def _task(
        self,
        tool: str,
        parameters: tuple[tuple[str, str], ...],
        job: ToolJob,
        hosts: Sequence[HostFile],
        folder: Path,
        *,
        saved: bool = False,
        map_outputs: dict[str, Path] | None = None,
        left_out: dict[str, str] | None = None,
        scanned: bool = False,
    ) -> tasks.ToolTask:
        unknown = () if scanned else tuple(i.host for i in hosts if i.file.identity not in self._sound)
        return tasks.ToolTask(
            tool=tool,
            parameters=parameters,
            folder=folder,
            hosts=tuple(item.host for item in hosts),
            session=job.session,
            saved=saved,
            map_outputs=map_outputs or {},
            scan=unknown,
            left_out=tuple((left_out or {}).items()),
        )

    async def _provide_all(
        self, job: ToolJob, family: Family, provide: Provide
    ) -> tuple[list[HostFile], dict[str, str]]:
        """Brings every host's derived files here; bad files are left out where the job allows it."""

        async def one(item: HostFile) -> None:
            check_size(item)
            await provide(job, item, family)

        return await self._keep_good(job, one)

    async def _sound_hosts(self, job: ToolJob) -> tuple[list[HostFile], dict[str, str]]:
        async def one(item: HostFile) -> None:
            check_size(item)
            if item.file.identity not in self._sound:
                async with AsyncExitStack() as stack:
                    [path] = await self.files.open(stack, job, [item])
                    await self._pool.run(tasks.scan, path, what=f"the scan of host '{item.host}'")
                self._sound[item.file.identity] = True

        return await self._keep_good(job, one)

    async def _keep_good(
        self, job: ToolJob, attempt: Callable[[HostFile], Awaitable[None]]
    ) -> tuple[list[HostFile], dict[str, str]]:
        results = await asyncio.gather(*(attempt(item) for item in job.hosts), return_exceptions=True)
        good: list[HostFile] = []
        left_out: dict[str, str] = {}
        first: BaseException | None = None
        for item, result in zip(job.hosts, results, strict=True):
            if result is None:
                good.append(item)
            elif job.tolerant and isinstance(result, (InvalidProfile, ProfileTooLarge)):
                left_out[item.host] = str(result)
                first = first or result
            else:
                raise result
        if not good and first is not None:
            raise first
        return good, left_out


def _folder_name(job: ToolJob) -> str:
    return job.session.rsplit("/", 1)[-1]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "") if names else "none"
