"""An embedded Ray: one node, started and stopped by us, without what one machine has no use for."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

# Ray takes 127.0.0.1 for a word and puts the machine's outer address in its place; other loopback addresses it leaves.
_ADDRESS: Final = "127.0.0.2"
_OBJECT_STORE_BYTES: Final = 512 << 20
# Replicas declare small fractions of a CPU; the real work is bounded by the engine processes.
_LOGICAL_CPUS: Final = 16


def configure_ray() -> None:
    """Sets what Ray takes from the environment when it is imported, and its processes inherit."""
    # Ray's ports are open on every interface, and whoever speaks to them can run code: a token that only this
    # instance's processes know keeps others out.
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    os.environ.pop("RAY_AUTH_TOKEN_PATH", None)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Each prestarted worker would import Ray while the replicas do.
    os.environ.setdefault("RAY_enable_worker_prestart", "0")
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")


class EmbeddedRay:
    """One Ray node. `stop` ends every process that it started, and no other."""

    def __init__(self, *, dashboard: bool) -> None:
        """`configure_ray` comes first."""
        # Ray puts Unix sockets below this folder, and their paths end at 107 bytes: the state folder's may be too long.
        self._folder = Path(tempfile.mkdtemp(prefix="xprof-hosting-ray-"))
        # Processes that Ray kills leave their temporary files behind: in here, they go with the folder.
        os.environ["TMPDIR"] = str(self._folder)
        from ray._private.node import Node
        from ray._private.parameter import RayParams

        parameters: dict[str, Any] = {
            "node_ip_address": _ADDRESS,
            "num_cpus": _LOGICAL_CPUS,
            "num_gpus": 0,
            "object_store_memory": _OBJECT_STORE_BYTES,
            "include_dashboard": dashboard,
            # Both are for clusters: one copies workers' output to drivers, the other asks for machines.
            "include_log_monitor": False,
            "no_monitor": True,
            "temp_dir": str(self._folder),
            "min_worker_port": 0,
            "max_worker_port": 0,
            # Ray's default is one fixed port, which a second instance on this machine would miss.
            "dashboard_agent_listen_port": 0,
        }
        try:
            self._node = Node(RayParams(**parameters), head=True, shutdown_at_exit=False, spawn_reaper=True)
        except BaseException:
            # Its processes end with this one.
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    @property
    def address(self) -> str:
        """The address that drivers connect to, as host:port."""
        return str(self._node.address)

    @property
    def folder(self) -> Path:
        """A folder of this instance's own, with a short path, that goes when Ray is stopped."""
        return self._folder

    def stop(self) -> None:
        """Ends Ray's processes and removes their folder."""
        self._node.kill_all_processes(check_alive=False, allow_graceful=True)
        shutil.rmtree(self._folder, ignore_errors=True)
