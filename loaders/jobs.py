"""What is asked of a shard: one tool's data of some hosts of a session, with the key under which the answer is kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from loaders.sessions import HostFile, Session
from loaders.stored_file import StoredFile
from loaders.tools import INSPECTION, TOOLS, Family, Tool, select_hosts

SCHEMA: Final = "2"
"""Changes when what we do to the engine's answers changes, so that older results are not used."""


@dataclass(frozen=True, slots=True)
class ToolJob:
    """A request for tool data with everything resolved, ready to travel to a shard."""

    session: str
    root: str
    """The log root's name, which says which store reads the files."""
    tool: str
    parameters: tuple[tuple[str, str], ...]
    hosts: tuple[HostFile, ...]
    tolerant: bool
    """Whether hosts whose files are bad may be left out; not where the one bad host was asked for by name."""
    split: bool = False
    """Whether the session is spread over the shards by host, rather than opened whole on one."""

    @property
    def family(self) -> Family:
        """What the tool is made from."""
        return TOOLS.get(self.tool, INSPECTION).family

    def key(self, engine: str) -> str:
        """The result key: engine, tool, canonical parameters and every file's identity, as 64 hex digits."""
        parts = [SCHEMA, engine, self.tool, self.parameters, [(item.host, item.file.identity) for item in self.hosts]]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def with_files(self, files: Sequence[StoredFile]) -> ToolJob:
        """The same job on other versions of its hosts' files, given in the hosts' order."""
        hosts = (HostFile(item.host, file) for item, file in zip(self.hosts, files, strict=True))
        return replace(self, hosts=tuple(hosts))

    @property
    def affinity(self) -> str:
        """What decides the shard: the host for one host's data of a split session, else the session."""
        one = self.split and len(self.hosts) == 1
        return host_affinity(self.session, self.hosts[0].host) if one else self.session

    @property
    def what(self) -> str:
        """The job in words, for errors and logs."""
        hosts = f"host '{self.hosts[0].host}'" if len(self.hosts) == 1 else f"{len(self.hosts)} hosts"
        return f"{self.tool} of session '{self.session}', {hosts}"


def host_affinity(session: str, host: str) -> str:
    """The affinity key of one host's file."""
    return f"{session}/{host}"


def plan_job(
    session: Session,
    tool: Tool,
    parameters: tuple[tuple[str, str], ...],
    host: str | None,
    hosts: str | None,
    *,
    split: bool = False,
) -> ToolJob:
    """Resolves a request's host parameters against a session.

    Tools made from HLO take every host, since a session's programs are one set whichever host is looked at.

    Raises:
        NotFound: a named host is not in the session.
    """
    names = select_hosts(tool, [item.host for item in session.hosts], host, hosts, session.name)
    chosen = session.hosts if tool.family is Family.HLO else [item for item in session.hosts if item.host in names]
    tolerant = len(chosen) > 1
    return ToolJob(session.name, session.root, tool.name, parameters, tuple(chosen), tolerant, split)


def inspection_job(session: Session, *, split: bool = False) -> ToolJob:
    """The job whose answer is the session's tools and modules, as JSON `{"tools": […], "modules": […]}`."""
    return ToolJob(session.name, session.root, INSPECTION.name, (), session.hosts, len(session.hosts) > 1, split)
