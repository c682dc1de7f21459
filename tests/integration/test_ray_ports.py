"""Ray's ports, which are open beyond loopback, take no orders from strangers."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

from hosting.service_process import ServiceProcess

STRANGER = "import ray; ray.init(address='{address}', log_to_driver=False); print('joined')"


def join(address: str, mode: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Tries to join from a process with these variables for Ray and no others."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | mode
    command = [sys.executable, "-c", STRANGER.format(address=address)]
    try:
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=15)
    except subprocess.TimeoutExpired:
        # Ray goes on asking for half a minute; who may join has joined by now.
        return subprocess.CompletedProcess(command, 1, "", "still trying")


def test_only_who_has_this_instances_token_can_join_its_ray(service: ServiceProcess) -> None:
    family = psutil.Process(service.pid).children(recursive=True)
    [raylet] = [process for process in family if process.name() == "raylet"]
    [address] = [word.split("=")[1] for word in raylet.cmdline() if word.startswith("--gcs-address=")]
    token = raylet.environ()["RAY_AUTH_TOKEN"]
    assert "joined" in join(address, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}).stdout
    for stranger in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}):
        tried = join(address, stranger)
        assert tried.returncode != 0
        assert "joined" not in tried.stdout
