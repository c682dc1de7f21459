"""A Ray cluster that others run: joined, used for our application, and left as it was found."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from hosting.cannot_serve import CannotServe

_log = logging.getLogger(__name__)
_HOST_AND_PORT: Final = re.compile(r"\[?(?P<host>[^/\]]+)\]?:(?P<port>\d+)")
_ANSWERS_WITHIN: Final = 5.0  # seconds


def check_answers(address: str) -> None:
    """Returns when something listens at the cluster's address; Ray itself would try for minutes.

    Raises:
        CannotServe: nothing does.
    """
    match = _HOST_AND_PORT.fullmatch(address)
    if match is None:
        return
    try:
        socket.create_connection((match["host"], int(match["port"])), _ANSWERS_WITHIN).close()
    except (OSError, OverflowError) as error:
        raise CannotServe(
            f"No Ray cluster answers at {address}: {error}. Give --ray-address the host:port that `ray start --head` "
            f"printed, or leave it out for a Ray of this instance's own."
        ) from None


def join(address: str, log_level: int, runtime_environment: Mapping[str, Any] | None = None) -> None:
    """Makes this process a driver of the Ray at this address, whose workers get this runtime environment.

    Raises:
        CannotServe: it can't be joined; says why.
    """
    import ray

    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=log_level,
            runtime_env=dict(runtime_environment) if runtime_environment else None,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise CannotServe(f"The Ray cluster at {address} can't be joined: {error}") from error


@contextmanager
def guest(application: str) -> Iterator[None]:
    """Takes away, after the block, our application and the Serve that it ran on, unless others use that by then.

    Raises:
        CannotServe: Serve is running already, so that its address is not ours to choose.
    """
    from ray import serve
    from ray.serve.context import _get_global_client

    running = _get_global_client(raise_if_no_controller_running=False)
    if running is not None:
        where = f"{running.http_config.host}:{running.http_config.port}"
        raise CannotServe(
            f"Ray Serve is running on this cluster already, at {where}. Stop it by `serve shutdown`, or add this "
            f"service to its configuration with import_path hosting.application:build."
        )
    try:
        yield
    finally:
        try:
            if serve.status().applications.keys() - {application}:
                serve.delete(application)
            else:
                serve.shutdown()  # type: ignore[no-untyped-call, unused-ignore]
        except Exception as error:
            # Ray raises whatever it likes here; stopping goes on all the same.
            _log.warning("the cluster could not be tidied up", extra={"reason": str(error)[:300]})
