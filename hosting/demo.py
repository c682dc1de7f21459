"""The demo: two JAX training processes on the CPU, captured as one session of two hosts, and the service on it."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlencode

from hosting.demo_check import check_session, table
from hosting.service_process import ServiceNotReady, ServiceProcess

RUN = "demo"
HOSTS = ("demo-host-0", "demo-host-1")


class CaptureFailed(RuntimeError):
    """A training process ended early, took too long or left no profile; the message has the end of its log."""


def capture_demo_session(
    logdir: Path, *, run: str = RUN, hosts: Sequence[str] = HOSTS, steps: int = 10, within: float = 120.0
) -> Path:
    """Trains in one process per host, records `steps` steps of each at the same time and returns the session's folder.

    The files are `<logdir>/<run>/plugins/profile/<time>/<host>.xplane.pb`, about 0.6 MB each. Takes some 5 s on two
    idle cores; raises `CaptureFailed` when something goes wrong or `within` seconds have passed.
    """
    with tempfile.TemporaryDirectory(prefix="xprof-hosting-capture-") as folder, contextlib.ExitStack() as stack:
        scratch = Path(folder)
        processes = [stack.enter_context(_training(scratch, index, steps)) for index in range(len(hosts))]
        deadline = threading.Timer(within, _kill, (processes,))
        stack.callback(deadline.cancel)
        deadline.start()
        for index, process in enumerate(processes):
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise CaptureFailed(f"{hosts[index]} did not start to train{_end_of_log(scratch, index)}")
        for index, process in enumerate(processes):
            assert process.stdin is not None
            try:
                process.stdin.write("go\n")
                process.stdin.flush()
            except BrokenPipeError:
                raise CaptureFailed(f"{hosts[index]} ended before its capture{_end_of_log(scratch, index)}") from None
        for index, process in enumerate(processes):
            if process.wait() != 0:
                raise CaptureFailed(f"{hosts[index]} failed during its capture{_end_of_log(scratch, index)}")
        return _gather(scratch, logdir / run, hosts)


@contextlib.contextmanager
def _training(scratch: Path, index: int, steps: int) -> Iterator[subprocess.Popen[str]]:
    script = Path(__file__).with_name("demo_training.py")
    command = [sys.executable, "-P", str(script), "--out", str(scratch / str(index)), "--host-index", str(index)]
    with (scratch / f"{index}.log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--steps", str(steps)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        yield process
    finally:
        process.kill()
        with contextlib.suppress(BrokenPipeError):
            process.communicate()


def _kill(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Ends every wait for these processes, for their output or their end."""
    for process in processes:
        process.kill()


def _gather(scratch: Path, run: Path, hosts: Sequence[str]) -> Path:
    """Moves the file of every process into one session, named after the time of the first one's capture."""
    files = []
    for index, host in enumerate(hosts):
        found = sorted((scratch / str(index)).glob("plugins/profile/*/*.xplane.pb"))
        if len(found) != 1:
            raise CaptureFailed(f"{host} left {len(found)} profiles instead of one{_end_of_log(scratch, index)}")
        files.append(found[0])
    session = run / "plugins" / "profile" / files[0].parent.name
    session.mkdir(parents=True)
    for host, file in zip(hosts, files, strict=True):
        shutil.move(file, session / f"{host}.xplane.pb")
    return session


def _end_of_log(scratch: Path, index: int, lines: int = 15) -> str:
    end = (scratch / f"{index}.log").read_text(errors="replace").splitlines()[-lines:]
    return "; the end of its log:\n" + "\n".join(end) if end else ""


def run_demo(check: bool, *, logdir: Path | None = None, port: int = 0) -> int:
    """Captures a session, serves it, and waits for Ctrl-C; with `check` it only opens everything in it over HTTP.

    The session is kept when `logdir` is given and lives in a temporary folder otherwise. `port` 0 takes a free one.
    Returns the exit code: 0 done, 1 failed.
    """
    # Closing the terminal or `kill` must stop the service as Ctrl-C does.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="xprof-hosting-demo-", ignore_cleanup_errors=True) as folder:
            return _run(Path(folder), logdir.resolve() if logdir else Path(folder) / "logs", port, check)
    except KeyboardInterrupt:
        print("\nStopped.", flush=True)
        return 1 if check else 0
    except (CaptureFailed, ServiceNotReady) as error:
        print(f"The demo failed: {error}", file=sys.stderr, flush=True)
        return 1


def _run(folder: Path, logdir: Path, port: int, check: bool) -> int:
    print("Training in JAX on the CPU, as two hosts of one job, and capturing a few steps of it …", flush=True)
    path = capture_demo_session(logdir)
    size = sum(file.stat().st_size for file in path.iterdir())
    print(f"Captured {path} ({len(HOSTS)} hosts, {size / 1e6:.1f} MB). Starting the service …", flush=True)
    arguments = ["--logdir", str(logdir), "--port", str(port), "--state-dir", str(folder / "state")]
    with ServiceProcess(arguments, log=folder / "serve.log") as service:
        session = f"{RUN}/{path.name}"
        if check:
            answers = check_session(service.address, session)
            print(table(answers))
            failed = sum(answer.problem is not None for answer in answers)
            print(f"{len(answers)} requests, {failed} failed.", flush=True)
            return 1 if failed else 0
        print(f"\nOpen   {service.address}?{urlencode({'run': session, 'tag': 'overview_page'}, safe='/')}")
        print("Press Ctrl-C to stop.", flush=True)
        code = service.wait()
    print(f"The service ended with exit code {code}.", file=sys.stderr, flush=True)
    return 1
