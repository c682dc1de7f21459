"""The processes in which engines run: warm, limited, killed when they exceed their deadline, replaced when they die."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from pebble import ProcessExpired, ProcessPool

from loaders.engines import limits
from loaders.engines.slots import Slots, Turn
from loaders.errors import DeadlineExceeded, DiskFull, EngineCrashed, OutOfMemory, ProfileError
from loaders.request_context import request_id

_log = logging.getLogger(__name__)
T = TypeVar("T")
# What a child may take to begin a task, above its deadline.
_START_SECONDS = 10.0

# Imported once in the fork server, so that a fresh child has the engine at hand in milliseconds.
_PRELOADED = ["loaders.engines.xprof", "loaders.engines.pool"]


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What one engine process may use."""

    processes: int = 2
    deadline: float = 600.0
    """Seconds that one task may take."""
    memory_bytes: int = 16 << 30
    """Resident bytes that a process may reach."""
    tasks_per_process: int = 64
    """Tasks after which a process is replaced, against leaks of native code."""


class EnginePool:
    """Runs engine functions in child processes. Owned by one shard; close it when done.

    Children are made by a fork server with the engine already imported. The caller's `__main__` must be importable
    without side effects, or have no `__file__`, since multiprocessing imports it again in each child.
    """

    def __init__(self, bounds: EngineLimits, initialize: Callable[[], None] | None = None) -> None:
        """`initialize` is called first in every child, as to set up its logs; it must be picklable."""
        self.bounds = bounds
        self.running = 0
        # Tasks wait here rather than in the pool, so that a deadline counts from when a child could take the task.
        self._slots = Slots(bounds.processes)
        # Before the fork server loads the engine: it tells some 40 lines a call otherwise.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)
        self._initialize = initialize
        self._pool = self._new_pool()
        # Done when the present pool is found broken. Made by the first task, which has an event loop for sure.
        self._broken: asyncio.Future[None] | None = None

    @property
    def free(self) -> int:
        """Processes that an urgent task could have at once."""
        return self._slots.free

    @property
    def waiting(self) -> int:
        """Tasks that wait for a process."""
        return self._slots.waiting

    async def run(self, function: Callable[..., T], *args: object, what: str, deadline: float | None = None) -> T:
        """Calls `function(*args)` in a child and returns what it returns.

        A task waits for its turn (see `Slots`): it is dropped when nobody wants it any more, and one that is not urgent
        is stopped and queued again when people need its process. A child that was killed from outside is tried once
        more, since the task need not be to blame.

        Args:
            what: names the work in errors, as in "trace_viewer@ of session 'x', host 'y'".
            deadline: seconds; the pool's own unless given.

        Raises:
            DeadlineExceeded: the deadline passed; the child was killed.
            OutOfMemory: the child went over its memory limit.
            EngineCrashed: the child died of something else.
            DiskFull: the child met a full disk.
            ProfileError: whatever of that family the function raises.
        """
        killed = False
        while True:
            async with self._slots.turn() as turn:
                try:
                    return await self._once(turn, function, args, what, deadline)
                except _Preempted:
                    _log.info("an engine call made room for a more urgent one", extra={"work": what})
                except _Killed:
                    if killed:
                        raise
                    killed = True
                    _log.warning("an engine process was killed; trying once more", extra={"work": what})

    async def _once(
        self, turn: Turn, function: Callable[..., T], args: tuple[object, ...], what: str, deadline: float | None
    ) -> T:
        seconds = deadline or self.bounds.deadline
        pool, broken = self._pool, self._broken or asyncio.get_running_loop().create_future()
        self._broken = broken
        patience = asyncio.timeout(seconds + _START_SECONDS)
        self.running += 1
        try:
            future = pool.schedule(
                _limited, args=(self.bounds.memory_bytes, request_id.get(), function, *args), timeout=seconds
            )
            turn.preempt = future.cancel
            answer = asyncio.wrap_future(future)
            try:
                async with patience:
                    # A pool that is stopped leaves the futures of what was running in it open.
                    await asyncio.wait({answer, broken}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                turn.preempt = None
                if not answer.done():
                    future.cancel()  # type: ignore[no-untyped-call]
            if answer.done() and not answer.cancelled():
                result: T = answer.result()
                return result
            if turn.preempted:
                raise _Preempted
            raise CancelledError
        except TimeoutError:
            if patience.expired():
                # No child took the task, or the one that did cannot even be killed in the usual way.
                self._replace(pool)
            raise DeadlineExceeded(
                f"The engine did not finish {what} within {seconds:g} s and was stopped. "
                f"Open a single host or a shorter capture, or raise --engine-deadline."
            ) from None
        except ProcessExpired as error:
            raise self._death(error, what) from None
        except (BrokenExecutor, RuntimeError, CancelledError) as error:
            if isinstance(error, RuntimeError) and not isinstance(error, BrokenExecutor) and pool.active:
                raise
            # Children that die while idle can take the whole pool with them.
            self._replace(pool)
            raise _Killed(f"The engine's processes died while they worked on {what}. Try again.") from None
        except MemoryError:
            raise self._out_of_memory(what) from None
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise DiskFull(
                    f"The disk that holds the state folder is full; {what} could not be finished. Free some space."
                ) from None
            raise
        finally:
            self.running -= 1

    def _new_pool(self) -> ProcessPool:
        return ProcessPool(
            max_workers=self.bounds.processes,
            max_tasks=self.bounds.tasks_per_process,
            initializer=_begin,
            initargs=(self._initialize,),
            context=self._context,
        )

    def _replace(self, broken: ProcessPool) -> None:
        """Puts a fresh pool in the place of a broken one, unless somebody has done so already."""
        if self._pool is broken:
            _log.error("the engine's process pool is broken and was replaced")
            self._pool = self._new_pool()
            if self._broken is not None:
                self._broken.set_result(None)
                self._broken = None
            # In a thread of its own: it waits for processes that may not end soon.
            threading.Thread(target=_stop, args=(broken,), name="stop-broken-pool", daemon=True).start()

    def _death(self, error: ProcessExpired, what: str) -> ProfileError:
        code = error.exitcode
        if code == limits.EXIT_OUT_OF_MEMORY:
            return self._out_of_memory(what)
        reason = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        kind = _Killed if code == -signal.SIGKILL else EngineCrashed
        return kind(
            f"The engine's process died ({reason}) while it worked on {what}. The file may be damaged in a way "
            f"that the engine does not catch; other sessions are not affected."
        )

    def _out_of_memory(self, what: str) -> OutOfMemory:
        return OutOfMemory(
            f"The engine went over its limit of {self.bounds.memory_bytes / 2**30:.1f} GiB on {what} and was stopped. "
            f"Open fewer hosts, or raise --engine-memory-gib."
        )

    async def close(self) -> None:
        """Stops the children and waits for them."""
        await asyncio.to_thread(_stop, self._pool)


class _Preempted(Exception):
    """The child was stopped for a more urgent task."""


class _Killed(EngineCrashed):
    """The child was killed from outside, so that the task need not be to blame."""


def _stop(pool: ProcessPool) -> None:
    pool.stop()  # type: ignore[no-untyped-call]
    pool.join()


def _begin(initialize: Callable[[], None] | None) -> None:
    limits.enter_child()
    if initialize is not None:
        initialize()


def _limited(memory_bytes: int, request: str, function: Callable[..., T], *args: object) -> T:
    request_id.set(request)
    started = time.monotonic()
    outcome = "failed"
    try:
        with limits.memory_limit(memory_bytes):
            result = function(*args)
        outcome = "done"
        return result
    finally:
        limits.give_back_memory()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        seconds = round(time.monotonic() - started, 3)
        _log.info("engine call %s", outcome, extra={"call": function.__name__, "seconds": seconds, "peak_bytes": peak})


def session_folder(scratch: Path, name: str) -> Path:
    """Makes the folder `plugins/profile/<name>/` in `scratch` in which an engine works."""
    folder = scratch / "plugins" / "profile" / name
    folder.mkdir(parents=True)
    return folder
