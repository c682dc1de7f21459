"""`xprof-hosting serve` as a child process: started, waited for until it is ready, and stopped."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

READY_LINE = re.compile(r"XProf hosting is ready at (http://\S+)")
STOP_WITHIN = 30.0  # seconds from SIGTERM to SIGKILL


class ServiceNotReady(RuntimeError):
    """The service ended, or was not ready in time; the message has the end of its log."""


class ServiceProcess:
    """A context manager around one service.

    `arguments` are those of `xprof-hosting serve`, with absolute paths; what the service logs goes to the file `log`.
    Entering waits until the service says where it is ready, at most `ready_within` seconds, or raises
    `ServiceNotReady`. Leaving sends SIGTERM and waits for the end. The service has a process group of its own: Ctrl-C
    in a terminal reaches only us, so that it is stopped once and in order.
    """

    def __init__(self, arguments: Sequence[str], *, log: Path, ready_within: float = 60.0) -> None:
        self._command = [sys.executable, "-m", "hosting.cli", "serve", *arguments]
        self._log = log
        self._ready_within = ready_within
        self._process: subprocess.Popen[str] | None = None
        self.address = ""
        """Where it answers, with a slash at the end: `http://127.0.0.1:8791/`."""

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the service was not started yet")
        return self._process.pid

    def __enter__(self) -> Self:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                cwd=Path(__file__).parent.parent,  # finds the package in a checkout that is not installed, too
            )
        try:
            self.address = self._wait_until_ready(self._process)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def wait(self) -> int:
        """Waits until the service ends by itself and returns its exit code."""
        if self._process is None:
            raise RuntimeError("the service was not started yet")
        return self._process.wait()

    def stop(self) -> None:
        """Stops the service and waits for its end; does nothing when it ended already."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _wait_until_ready(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        said: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=_report_ready, args=(process.stdout, said), daemon=True).start()
        try:
            address = said.get(timeout=self._ready_within)
        except queue.Empty:
            raise ServiceNotReady(
                f"the service was not ready within {self._ready_within:g} s{self._end_of_log()}"
            ) from None
        if address is None:
            raise ServiceNotReady(f"the service ended with exit code {process.wait()}{self._end_of_log()}")
        return address.rstrip("/") + "/"

    def _end_of_log(self, lines: int = 15) -> str:
        end = self._log.read_text(errors="replace").splitlines()[-lines:]
        return "; the end of its log:\n" + "\n".join(end) if end else ""


def _report_ready(output: IO[str], said: queue.SimpleQueue[str | None]) -> None:
    """Puts the address once it is printed, or None at the end; reads on so that the service never blocks on a pipe."""
    with output:
        for line in output:
            if found := READY_LINE.search(line):
                said.put(found[1])
    said.put(None)
