"""Ray Serve's HAProxy as we want it: retrying, and open to others at the service's own address only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from hosting.free_ports import free_port_range, free_ports

_PORTS: Final = 100
"""More than there are gateways on one machine, with some to spare while they are replaced."""


def haproxy_environment(folder: Path) -> dict[str, Any]:
    """The Ray runtime environment in which Serve takes HTTP by HAProxy.

    A retry asks another gateway for what a dying one has not answered. Gateways leave without Serve's pause of half a
    minute.

    Args:
        folder: for HAProxy's files, with a short path; made on other machines, too.
    """
    metrics_port, stats_port = free_ports(2)
    # Serve's default is one range for all instances of a machine, whose gateways would share ports, and requests.
    http_ports, grpc_ports = (free_port_range(_PORTS) for _ in range(2))
    variables = {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_NBTHREAD": str(min(4, os.cpu_count() or 1)),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        # A short name: Ray puts 56 digits before it, and a socket's path ends at 107 bytes.
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "s"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "haproxy-state"),
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics_port),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats_port),
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "2",
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(http_ports.start),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(http_ports.stop - 1),
        "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": str(grpc_ports.start),
        "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT": str(grpc_ports.stop - 1),
    }
    return {"env_vars": variables, "worker_process_setup_hook": f"{__name__}.keep_status_local"}


def keep_status_local() -> None:
    """Has HAProxy's status pages listen on loopback, in the process that writes its configuration: Serve's template
    opens them on every interface, without a password."""
    from ray.serve._private import haproxy, haproxy_templates

    template = haproxy_templates.HAPROXY_CONFIG_TEMPLATE
    for opened in ("bind :{{ config.metrics_port }}", "bind *:{{ config.stats_port }}"):
        if opened not in template:
            raise RuntimeError(f"Ray Serve's HAProxy template has changed: there is no '{opened}' in it.")
        template = template.replace(opened, f"bind 127.0.0.1:{opened.partition(':')[2]}")
    haproxy.HAPROXY_CONFIG_TEMPLATE = template  # type: ignore[attr-defined, unused-ignore]
