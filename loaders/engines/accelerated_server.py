"""The accelerated engine's process as a shard sees it: start, ask, watch, end."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import logging
import os
import socket
import sys
import time
import urllib.parse
import zlib
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from loaders.engines.accelerated_launcher import START_SECONDS
from loaders.unbroken import in_thread

_API: Final = "/data/plugin/profile/"
_POLL_SECONDS: Final = 0.02
_END_SECONDS: Final = 2.0
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_log = logging.getLogger(__name__)


class ServerDied(Exception):
    """The process is gone, or talks no HTTP; another one may do better."""


class LimitPassed(Exception):
    """The process took too long or too much memory for one answer and was killed."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the server answered."""

    status: int
    content_type: str
    body: bytes
    """Decompressed."""
    gzip_body: bytes | None
    """As it came, if that was compressed."""
    peak_bytes: int = 0
    """The largest resident size that the process had while it worked."""


class AcceleratedServer:
    """One running process. Not for several calls at once."""

    def __init__(self, process: Process, control: socket.socket, pid: int) -> None:
        """Takes over what `start` has made."""
        self._process = process
        self._control = control
        self._statm = os.open(f"/proc/{pid}/statm", os.O_RDONLY)
        self.pid = pid
        self._told = asyncio.ensure_future(_tell(process))

    @classmethod
    async def start(cls, binary: Path, logdir: Path) -> AcceleratedServer:
        """Starts the process on a folder and waits until it answers.

        Raises:
            ServerDied: it does not start.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(2 * START_SECONDS)
        module = "loaders.engines.accelerated_launcher"
        with theirs:
            # Not in a thread: the process is to die with the one that starts it, which the kernel takes for the thread.
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", module, str(theirs.fileno()), str(binary), str(logdir)),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            said = await in_thread(partial(ours.recv, 32))
            return cls(process, ours, int(said))
        except (OSError, ValueError) as error:
            ours.close()
            with suppress(ProcessLookupError):
                process.kill()
            output, _ = await process.communicate()
            reason = output.decode(errors="replace").strip()[-500:] or str(error)
            raise ServerDied(f"it does not start: {reason}") from None
        except BaseException:
            ours.close()
            raise

    def resident_bytes(self) -> int:
        """What the process holds in memory now; 0 when it is gone."""
        with suppress(OSError):
            return int(os.pread(self._statm, 64, 0).split()[1]) * _PAGE
        return 0

    async def get(self, path: str, query: Mapping[str, str], seconds: float, max_bytes: int) -> Reply:
        """One answer of the UI's API.

        Args:
            path: as `data` or `run_tools`.
            seconds: how long it may take.
            max_bytes: how large the process may get meanwhile.

        Raises:
            ServerDied: the process ended, or its answer is broken.
            LimitPassed: it went over a limit.
        """
        target = f"{_API}{path}?{urllib.parse.urlencode(query, errors='surrogateescape')}"
        exchange = asyncio.ensure_future(in_thread(partial(_exchange, self._control, target, seconds)))
        end = time.monotonic() + seconds
        peak = 0
        try:
            while not exchange.done():
                await asyncio.wait([exchange], timeout=_POLL_SECONDS)
                peak = max(peak, self.resident_bytes())
                if peak > max_bytes:
                    raise LimitPassed(f"it went over {max_bytes / 2**30:.1f} GiB")
                if time.monotonic() > end and not exchange.done():
                    raise LimitPassed(f"it did not answer within {seconds:g} s")
            return replace(exchange.result(), peak_bytes=peak)
        except TimeoutError:
            raise LimitPassed(f"it did not answer within {seconds:g} s") from None
        except (OSError, http.client.HTTPException, EOFError, zlib.error) as error:
            raise ServerDied(f"no whole answer came: {error or type(error).__name__}") from None
        finally:
            if not exchange.done():
                # Ends the thread's wait for an answer, too.
                self._end()
                with suppress(OSError, http.client.HTTPException):
                    await exchange

    async def stop(self) -> None:
        """Ends the process and waits for it."""
        self._end()
        try:
            await asyncio.wait_for(self._process.wait(), _END_SECONDS)
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        self._control.close()
        os.close(self._statm)
        await asyncio.wait([self._told])

    def _end(self) -> None:
        """Lets the launcher kill the server: were it killed itself, nobody might be there to reap the server."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)


async def _tell(process: Process) -> None:
    """Passes on what the process says, which is hardly anything unless it fails."""
    assert process.stdout is not None
    while text := await process.stdout.read(4096):
        _log.debug("the accelerated engine says", extra={"text": text.decode(errors="replace").strip()})


def _exchange(control: socket.socket, target: str, seconds: float) -> Reply:
    connection = http.client.HTTPConnection("127.0.0.1", timeout=seconds)
    connection.sock = _connected(control, seconds)
    try:
        connection.request("GET", target, headers={"Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        content_type = answer.headers.get_content_type()
        body = answer.read()
        if answer.headers.get("Content-Encoding") != "gzip":
            return Reply(answer.status, content_type, body, None)
        return Reply(answer.status, content_type, gzip.decompress(body), body)
    finally:
        connection.close()


def _connected(control: socket.socket, seconds: float) -> socket.socket:
    control.send(b".")
    _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
    if not descriptors:
        raise ConnectionResetError("the process has ended")
    found = socket.socket(fileno=descriptors[0])
    found.set_inheritable(False)
    found.settimeout(seconds)
    return found
