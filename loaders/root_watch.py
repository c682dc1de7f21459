"""Keeps the listing of one log root fresh in the background."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from loaders.errors import AccessDenied, NotFound, ProfileError
from loaders.log_roots import LogRoot
from loaders.pace import Pace
from loaders.root_listing import LOOSE, ListingCollector, RootListing
from loaders.session_names import address_of
from loaders.sessions import RootState, RootStatus, Session
from loaders.stores import Skipped, StoredFile

_LOG = logging.getLogger(__name__)
_LAYOUT = "…/plugins/profile/<session>/<host>.xplane.pb"
_NAMED_IN_LOG = 5


class ListsObjects(Protocol):
    """The part of a store that discovery needs."""

    def list(self) -> AsyncIterator[Sequence[StoredFile | Skipped]]:
        """All objects below the root, flat, in pages."""
        ...


class RootWatch:
    """Lists one log root again and again, one pass at a time, and tells `on_change` after each.

    The attributes `state`, `sessions` and `loose` are what the last passes found; a pass that fails because the store
    cannot be reached leaves the sessions as they were.
    """

    def __init__(
        self,
        root: LogRoot,
        *,
        prefix: str,
        open_store: Callable[[], ListsObjects],
        pace: Pace,
        settle: float,
        on_change: Callable[[], Awaitable[None]],
    ) -> None:
        self.root = root
        self.sessions: tuple[Session, ...] = ()
        self.loose: tuple[Session, ...] = ()
        self.state = RootState(
            name=root.name,
            uri=root.uri,
            status="listing",
            message=f"{root.uri} is being listed for the first time.",
            objects=0,
            requests=0,
            skipped=(),
            skipped_counts={},
            listed_at=0.0,
            took=0.0,
        )
        self.first_pass = asyncio.Event()
        self._prefix = prefix
        self._open_store = open_store
        self._store: ListsObjects | None = None
        self._pace = pace
        self._settle = settle
        self._on_change = on_change
        self._waiters: list[asyncio.Future[None]] = []
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Pass, wait until the next pass is due or asked for, and again, until cancelled."""
        serving: list[asyncio.Future[None]] = []
        try:
            while True:
                serving, self._waiters = self._waiters, []
                try:
                    await self._pass()
                except Exception:
                    _LOG.exception("a pass over the log root %s could not be published", self.root.uri)
                self.first_pass.set()
                _release(serving)
                await self._until_due()
        finally:
            _release(serving + self._waiters)

    def touch(self) -> None:
        """Somebody looks."""
        if self._pace.looked():
            self._wake.set()

    async def refresh(self) -> None:
        """Wait for a pass that starts from now on; all who ask while a pass runs share the one after it."""
        done = asyncio.get_running_loop().create_future()
        self._waiters.append(done)
        self._wake.set()
        await done

    async def _until_due(self) -> None:
        while not self._waiters and (remaining := self._pace.remaining()) > 0:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(remaining):
                    await self._wake.wait()

    async def _pass(self) -> None:
        before = self.state.status, self.sessions
        started = time.monotonic()
        failed = True
        try:
            listing = await self._list()
        except NotFound as error:
            # Not a failure to back off from: the folder may be about to be made.
            failed = False
            self._drop("missing", error.message)
        except AccessDenied as error:
            self._drop("forbidden", error.message)
        except ProfileError as error:
            self._keep(error.message)
        except Exception as error:
            # Discovery must outlive whatever goes wrong, and say so where people look.
            _LOG.exception("listing the log root %s failed unexpectedly", self.root.uri)
            self._keep(f"{self.root.uri} could not be listed: {type(error).__name__}: {error}")
        else:
            failed = False
            self._take(listing)
        took = time.monotonic() - started
        self.state = replace(self.state, listed_at=time.time(), took=took)
        self._pace.passed(took, failed=failed)
        self._report(*before)
        await self._on_change()

    async def _list(self) -> RootListing:
        if self._store is None:
            self._store = await asyncio.to_thread(self._open_store)
        collector = ListingCollector(self.root.name, self.root.uri, self._prefix)
        settled_before = time.time() - self._settle
        async for page in self._store.list():
            collector.add_page(page)
            await asyncio.sleep(0)
        return await asyncio.to_thread(self._sort_out, collector, settled_before)

    def _sort_out(self, collector: ListingCollector, settled_before: float) -> RootListing:
        listing = collector.finish(settled_before)
        # Keeping the very objects that are equal makes every later comparison cheap.
        return replace(
            listing,
            sessions=self.sessions if listing.sessions == self.sessions else listing.sessions,
            loose=self.loose if listing.loose == self.loose else listing.loose,
        )

    def _take(self, listing: RootListing) -> None:
        self.sessions, self.loose = listing.sessions, listing.loose
        self.state = replace(
            self.state,
            status="ok" if listing.sessions else "empty",
            message=_found(self.root.uri, listing),
            objects=listing.objects,
            requests=listing.pages,
            skipped=listing.skipped,
            skipped_counts=listing.skipped_counts,
        )

    def _drop(self, status: RootStatus, message: str) -> None:
        self.sessions = self.loose = ()
        self.state = replace(
            self.state, status=status, message=message, objects=0, requests=1, skipped=(), skipped_counts={}
        )

    def _keep(self, message: str) -> None:
        if self.sessions:
            shown = _plural(len(self.sessions), "session")
            message = f"{message.rstrip('.')}. Shown meanwhile: {shown} of the last good listing."
        self.state = replace(self.state, status="unreachable", message=message)

    def _report(self, status_before: RootStatus, sessions_before: tuple[Session, ...]) -> None:
        state = self.state
        facts = {
            "log_root": state.name,
            "uri": state.uri,
            "status": state.status,
            "objects": state.objects,
            "skipped": dict(state.skipped_counts),
        }
        if state.status != status_before:
            level = logging.INFO if state.status in ("ok", "empty") else logging.WARNING
            examples = "".join(f"\n  skipped {item.uri}: {item.reason}" for item in state.skipped)
            _LOG.log(level, "log root %s is %s: %s%s", state.name, state.status, state.message, examples, extra=facts)
        elif self.sessions is not sessions_before:
            names, names_before = ({found.name for found in these} for these in (self.sessions, sessions_before))
            if names != names_before:
                appeared, gone = sorted(names - names_before), sorted(names_before - names)
                _LOG.info(
                    "log root %s: new sessions: %s; gone: %s", state.name, _some(appeared), _some(gone), extra=facts
                )


def _release(waiters: Sequence[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


def _found(uri: str, listing: RootListing) -> str:
    looked = f"among {_plural(listing.objects, 'object')} below {uri}"
    if listing.sessions:
        message = f"{_plural(len(listing.sessions), 'session')} {looked}."
    elif listing.objects:
        message = f"No session was found: nothing {looked} is at {_LAYOUT}."
    else:
        message = f"No session was found: there is nothing below {uri}. Sessions are expected at {_LAYOUT}."
    if listing.skipped_counts:
        counts = ", ".join(f"{kind}: {count:,}" for kind, count in listing.skipped_counts.items())
        message += f" Skipped: {counts}."
    if listing.skipped_counts.get(LOOSE):
        message += f" Move those folders to …/plugins/profile/, or open one with {address_of(listing.loose[0].uri)}"
    return message


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _some(names: Sequence[str]) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - _NAMED_IN_LOG} more" if len(names) > _NAMED_IN_LOG else ""
    return ", ".join(names[:_NAMED_IN_LOG]) + more
