"""Puts profiles where a log root has them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path


def add_session(root: Path, run: str, session: str, hosts: Mapping[str, Path]) -> Path:
    """Copies a profile per host to `root/run/plugins/profile/session/<host>.xplane.pb`; returns the session's folder.

    An empty `run` makes a session of the root itself.
    """
    folder = root / run / "plugins" / "profile" / session
    folder.mkdir(parents=True, exist_ok=True)
    for host, profile in hosts.items():
        shutil.copyfile(profile, folder / f"{host}.xplane.pb")
    return folder
