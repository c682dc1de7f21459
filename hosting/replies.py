"""What shards answer. Failures travel as values: an exception would come back wrapped in Ray's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from loaders.errors import ProfileError

Bytes = npt.NDArray[np.uint8]
"""Bytes as an array, which crosses Ray's object store without being copied."""


@dataclass(frozen=True, slots=True)
class RecordReply:
    """A record and the key it is kept under (not the key asked for, when the files had changed), or a problem."""

    key: str
    record: Bytes | None = None
    problem: ProfileError | None = None


@dataclass(frozen=True, slots=True)
class MapReply:
    """Whether one host's derived files are now in the cache of the shard that answers."""

    problem: ProfileError | None = None


@dataclass(frozen=True, slots=True)
class EntryReply:
    """The files of a derived entry, for a shard on another machine; empty when it is gone."""

    files: Mapping[str, Bytes] = field(default_factory=dict)


def as_array(data: bytes) -> Bytes:
    """The bytes as an array, without a copy."""
    return np.frombuffer(data, dtype=np.uint8)
