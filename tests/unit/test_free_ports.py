"""Ports that nobody has."""

from __future__ import annotations

import socket

from hosting.free_ports import free_port_range


def test_a_range_of_ports_is_free_as_a_whole_and_another_call_gets_another_place() -> None:
    found = [free_port_range(50) for _ in range(5)]
    assert {len(ports) for ports in found} == {50}
    assert len({ports.start for ports in found}) > 1
    for port in (found[0].start, found[0].stop - 1):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
