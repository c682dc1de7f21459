"""Ports that nobody has at the moment."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack


def free_ports(count: int) -> list[int]:
    """So many different TCP ports, free on every interface now; another process may take one before you do."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("", 0))
        return [probe.getsockname()[1] for probe in probes]


def free_port_range(count: int) -> range:
    """So many ports in a row on which nothing listens at the moment, at a place that another caller hardly finds."""
    while True:
        first = random.randrange(20_000, 32_000 - count)
        try:
            with ExitStack() as stack:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("", port))
        except OSError:
            continue
        return range(first, first + count)
