"""All sessions of all log roots, kept fresh in the background and answered from memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from loaders.errors import NotFound
from loaders.log_roots import LogRoot, parse_log_roots
from loaders.pace import Pace
from loaders.root_watch import ListsObjects, RootWatch
from loaders.sessions import HostFile, RootState, RootStatus, Session, SkippedItem, Snapshot
from loaders.stores import StoreOptions, open_store

__all__ = [
    "Catalog",
    "HostFile",
    "LogRoot",
    "RootState",
    "RootStatus",
    "Session",
    "SkippedItem",
    "Snapshot",
    "parse_log_roots",
]


class Catalog:
    """Owns the background discovery of sessions: one flat listing per log root and pass, and never on a request's path.

    All methods belong to one event loop. Times are seconds: local roots are listed every `local_interval`, buckets
    every `bucket_interval`; after `idle_after` without `touch()` each further pass waits `idle_factor` times longer, up
    to `idle_limit`; a session is complete when its files are older than `settle`.
    """

    def __init__(
        self,
        roots: Sequence[LogRoot],
        options: StoreOptions,
        *,
        local_interval: float = 4.0,
        bucket_interval: float = 30.0,
        idle_after: float = 300.0,
        idle_factor: float = 4.0,
        idle_limit: float = 600.0,
        failure_limit: float = 300.0,
        settle: float = 5.0,
        open_store: Callable[[str, StoreOptions], ListsObjects] = open_store,
    ) -> None:
        self._watches = {
            root.name: RootWatch(
                root,
                prefix=f"{root.name}/" if len(roots) > 1 else "",
                open_store=partial(open_store, root.uri, options),
                pace=Pace(
                    interval=local_interval if root.uri.startswith("file://") else bucket_interval,
                    idle_after=idle_after,
                    idle_factor=idle_factor,
                    idle_limit=idle_limit,
                    failure_limit=failure_limit,
                ),
                settle=settle,
                on_change=self._publish,
            )
            for root in roots
        }
        self._snapshot = Snapshot(version=0, sessions=(), roots=self._states())
        self._publishing = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start listing; returns at once. Does nothing when already started."""
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(watch.run(), name=f"list {name}") for name, watch in self._watches.items()
            ]

    async def stop(self) -> None:
        """Stop listing, also in the middle of a pass. Whoever waits in `refresh()` is let go."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def snapshot(self) -> Snapshot:
        """What is known now. Never waits, never lists."""
        return self._snapshot

    async def ready(self) -> Snapshot:
        """Wait for the first pass over every root; one that cannot be listed counts as passed."""
        await asyncio.gather(*(watch.first_pass.wait() for watch in self._watches.values()))
        return self._snapshot

    def touch(self) -> None:
        """Somebody looks: leave the idle pace at once."""
        for watch in self._watches.values():
            watch.touch()

    async def refresh(self, root: str | None = None) -> None:
        """List one root, or all, now, and return when the snapshot shows what was there when this was called.

        Calls coalesce: passes over a root never overlap, and all who ask while one runs share the next. A root that
        cannot be listed raises nothing here; its state says so.

        Raises:
            NotFound: no log root has this name.
            RuntimeError: the catalog is not running.
        """
        if not self._tasks and self._watches:
            raise RuntimeError("the catalog is not running; call start() first")
        if root is not None and root not in self._watches:
            raise NotFound(f"there is no log root called {root!r}; there are: {', '.join(self._watches) or 'none'}.")
        chosen = self._watches.values() if root is None else [self._watches[root]]
        await asyncio.gather(*(watch.refresh() for watch in chosen))

    async def _publish(self) -> None:
        async with self._publishing:
            roots = self._states()
            sessions = [watch.sessions for watch in self._watches.values()]
            loose = [watch.loose for watch in self._watches.values()]
            self._snapshot = await asyncio.to_thread(_next_snapshot, self._snapshot, roots, sessions, loose)

    def _states(self) -> tuple[RootState, ...]:
        return tuple(watch.state for watch in self._watches.values())


def _next_snapshot(
    last: Snapshot,
    roots: tuple[RootState, ...],
    sessions_by_root: Sequence[tuple[Session, ...]],
    loose_by_root: Sequence[tuple[Session, ...]],
) -> Snapshot:
    merged = (session for sessions in sessions_by_root for session in sessions)
    sessions = tuple(sorted(merged, key=lambda session: session.name, reverse=True))
    loose = tuple(session for found in loose_by_root for session in found)
    same_roots = [_content(state) for state in roots] == [_content(state) for state in last.roots]
    if same_roots and sessions == last.sessions and loose == last.loose:
        return last.with_roots(roots)
    return Snapshot(last.version + 1, sessions, roots, loose).prepare()


def _content(state: RootState) -> tuple[object, ...]:
    """What counts as a change of a root: not how long the last pass took, nor files that are no profiles."""
    return state.name, state.uri, state.status, "" if state.status in ("ok", "empty") else state.message
