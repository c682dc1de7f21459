"""`xprof-hosting serve`: starts everything, says where it is ready, and stops what it started."""

from __future__ import annotations

import fcntl
import ipaddress
import logging
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Final

from hosting.cannot_serve import CannotServe
from hosting.embedded_ray import EmbeddedRay, configure_ray
from hosting.existing_ray import check_answers, guest, join
from hosting.front import gateway_placement
from hosting.haproxy import haproxy_environment
from hosting.logs import configure_logs
from hosting.settings import Settings
from hosting.shared_socket import DRAIN_SECONDS, SocketLender
from loaders.engines.trust import accelerated_binary
from loaders.errors import BadParameter
from loaders.log_roots import parse_log_roots

_log = logging.getLogger(__name__)
_READY_SECONDS: Final = 120.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve_forever(settings: Settings) -> int:
    """Runs the service until SIGINT, SIGTERM or SIGHUP. Returns the exit status.

    Raises:
        BadParameter: settings that can't work.
        CannotServe: a port or state folder in use, or a start that failed.
    """
    _check(settings)
    settings = _settled(settings)
    stopping = threading.Event()
    _stop_on_signals(stopping)
    with ExitStack() as stack:
        stack.enter_context(_owned(settings.state_dir))
        configure_logs("serve", settings.log_level, settings.state_dir / "logs")
        claimed = _claim(settings.host, settings.port)
        settings = settings.model_copy(update={"port": claimed.getsockname()[1]})
        _start(settings, claimed, stack, stopping)
        address = f"http://{_reachable(settings.host)}:{settings.port}/"
        _wait_until_ready(f"{address}readyz", stopping)
        if not stopping.is_set():
            sys.stdout.write(f"XProf hosting is ready at {address}\n")
            sys.stdout.flush()
            _log.info("ready", extra={"address": address, "logdir": list(settings.logdir)})
            if settings.engine == "auto" and accelerated_binary() is None:
                _log.info("the accelerated engine is not installed; xprof answers everything")
        stopping.wait()
        # A second signal means now.
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        sys.stderr.write("Stopping…\n")
    return 0


def _stop_on_signals(stopping: threading.Event) -> None:
    for number in _SIGNALS:
        signal.signal(number, lambda *_: stopping.set())


@contextmanager
def _keeping_signals(stopping: threading.Event) -> Iterator[None]:
    """Signals wait while the block runs, in which Ray puts handlers of its own in place of ours: they would end us
    without anything being stopped."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        _stop_on_signals(stopping)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _start(settings: Settings, claimed: socket.socket, stack: ExitStack, stopping: threading.Event) -> None:
    """Starts Ray unless there is one, and the application on it; `stack` gets what stops them.

    Raises:
        CannotServe: the existing cluster does not answer, or has Serve running already.
    """
    address = settings.ray_address
    if address:
        check_answers(address)
        # Short, since paths of Unix sockets are.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xprof-")))
    else:
        configure_ray()
        embedded = EmbeddedRay(dashboard=settings.ray_dashboard)
        stack.callback(embedded.stop)
        address, folder = embedded.address, embedded.folder
    import ray
    from ray import serve
    from ray.serve._private.constants import SERVE_LOGGER_NAME

    from hosting.application import NAME, application

    level = logging.INFO if settings.log_level == "debug" else logging.ERROR
    logging.getLogger(SERVE_LOGGER_NAME).setLevel(level)
    with _keeping_signals(stopping):
        stack.callback(ray.shutdown)
        join(address, level, haproxy_environment(folder) if settings.front == "haproxy" else None)
    if stopping.is_set():
        return
    if settings.ray_address or settings.front == "haproxy":
        # Killed with Ray, HAProxy's manager would leave HAProxy running.
        stack.enter_context(guest(NAME))
    placement = gateway_placement(settings, loopback=_is_loopback(settings.host))
    if settings.front == "direct":
        lender = folder / "gateways"
        stack.callback(SocketLender(claimed, lender).take_back, DRAIN_SECONDS + 1)
        serve.start(proxy_location="Disabled")
        started = application(settings, lender, placement)
    else:
        claimed.close()
        http: dict[str, Any] = {"host": settings.host, "port": settings.port, "request_timeout_s": None}
        serve.start(http_options=http)
        started = application(settings, placement=placement)
    # Not waiting for every replica: the service is ready as soon as one of each is, which /readyz says.
    serve.run_many([serve.RunTarget(started, name=NAME)], wait_for_applications_running=False)


def _wait_until_ready(address: str, stopping: threading.Event) -> None:
    """Returns when `/readyz` says so, or when a signal came.

    Raises:
        CannotServe: it took too long; says what was last answered.
    """
    deadline = time.monotonic() + _READY_SECONDS
    said = "nothing answered"
    while not stopping.is_set():
        try:
            with urllib.request.urlopen(address, timeout=10):
                return
        except urllib.error.HTTPError as error:
            said = error.read(500).decode(errors="replace").strip()
        except OSError as error:
            said = str(error)
        if time.monotonic() > deadline:
            raise CannotServe(f"The service was not ready within {_READY_SECONDS:.0f} s ({said}). Its logs say more.")
        stopping.wait(0.05)


@contextmanager
def _owned(folder: Path) -> Iterator[None]:
    """Holds the state folder for this instance.

    Raises:
        CannotServe: it can't be written, or another instance has it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock: IO[str] = (folder / "instance.lock").open("a+")
    except OSError as error:
        raise CannotServe(
            f"The state folder {folder} can't be used: {error.strerror}. Name another by --state-dir."
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotServe(
                f"Another instance is using the state folder {folder}. Give this one its own by --state-dir."
            ) from None
        yield


def _claim(host: str, port: int) -> socket.socket:
    """A socket bound to the address, with a free port for 0, that nobody else can bind to while it is open.

    Raises:
        CannotServe: the port is taken, or the host is none of this machine's addresses.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    claimed = socket.socket(family)
    claimed.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        claimed.bind((host, port))
    except OSError as error:
        claimed.close()
        raise CannotServe(
            f"Can't listen on {host}:{port}: {error.strerror}. Name another by --port; 0 picks one."
        ) from None
    # Past connections that linger were not to keep us from binding; until we listen, others could do the same.
    claimed.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return claimed


def _check(settings: Settings) -> None:
    if not settings.logdir:
        raise BadParameter("No log root is given. Name at least one: xprof-hosting serve --logdir gs://bucket/prefix")
    parse_log_roots(settings.logdir)
    if settings.engine == "xprof-rs" and accelerated_binary() is None:
        raise BadParameter(
            "--engine xprof-rs needs the accelerated engine, which is not installed: "
            "pip install 'xprof-hosting[accelerated]'"
        )
    if not _is_loopback(settings.host) and not settings.insecure_no_auth:
        raise BadParameter(
            f"--host {settings.host} would let everyone who reaches it see every profile, as no authentication is "
            f"configured. Listen on loopback, or give --insecure-no-auth if that is what you want."
        )


def _settled(settings: Settings) -> Settings:
    """The settings without relative paths: the replicas on an existing cluster run in other folders than we do."""
    return settings.model_copy(
        update={
            "logdir": tuple(f"{root.name}={root.uri}" for root in parse_log_roots(settings.logdir)),
            "state_dir": settings.state_dir.expanduser().absolute(),
            "results": settings.results_uri,
        }
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _reachable(host: str) -> str:
    """The host as this machine reaches it, fit for an address."""
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
