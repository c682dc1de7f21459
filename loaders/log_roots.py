"""The configured places to look for sessions, as given on the command line or in the settings file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loaders.errors import BadParameter
from loaders.stores import canonical_uri

_NAMED = re.compile(r"(?!\.+=)(?P<name>[A-Za-z0-9._-]+)=(?P<uri>.*)", re.DOTALL)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class LogRoot:
    """A log root: where it is, and what it is called when there are several."""

    name: str
    uri: str


def parse_log_roots(specs: Sequence[str]) -> tuple[LogRoot, ...]:
    """Read log roots given as `[NAME=]URI`, in their order.

    What stands before the first `=` is a NAME when it consists of letters, digits, `.`, `_` and `-` only, so paths such
    as `/runs/lr=0.1` and `gs://bucket/lr=0.1` need no care; a relative path such as `lr=0.1` is read as a path when it
    exists (or is written `./lr=0.1`). A colon has no meaning of its own. A root without a NAME is called after the last
    part of its path, with `-2`, `-3`, … appended when that name is taken. A root given twice without names counts once.

    Raises:
        BadParameter: an empty spec, an unsupported scheme, or a NAME given twice.
    """
    named = [_split(spec) for spec in specs]
    uris_by_name: dict[str, str] = {}
    for name, uri in named:
        if name is None:
            continue
        if name in uris_by_name:
            raise BadParameter(
                f"Two log roots are called {name!r}: {uris_by_name[name]} and {uri}; give each a NAME of its own."
            )
        uris_by_name[name] = uri
    taken = set(uris_by_name)
    unnamed: set[str] = set()
    roots = []
    for name, uri in named:
        if name is None:
            if uri in unnamed:
                continue
            unnamed.add(uri)
            name = _free_name(uri, taken)
            taken.add(name)
        roots.append(LogRoot(name, uri))
    return tuple(roots)


def _split(spec: str) -> tuple[str | None, str]:
    match = _NAMED.fullmatch(spec)
    name, uri = (None, spec)
    if match and not _is_path(spec):
        name, uri = match["name"], match["uri"]
    if not uri.strip():
        raise BadParameter(
            f"The log root {spec!r} names no place. Give a local folder, gs://bucket/prefix or s3://bucket/prefix."
        )
    return name, canonical_uri(uri)


def _is_path(spec: str) -> bool:
    try:
        return Path(spec).exists()
    except (OSError, ValueError):
        return False


def _free_name(uri: str, taken: set[str]) -> str:
    last = uri.partition("://")[2].rstrip("/").rpartition("/")[2]
    stem = _NOT_IN_NAMES.sub("-", last).strip("-")
    if not stem.strip("."):
        stem = "root"
    name, number = stem, 1
    while name in taken:
        number += 1
        name = f"{stem}-{number}"
    return name
