"""Which keys of a bucket can stand for files."""

from __future__ import annotations

from typing import Final

IMPROPER: Final = "objects with an empty part, '.' or '..' in their names"
MARKER: Final = "folder markers"


def is_proper(key: str) -> bool:
    """Whether a key reads as a path below the bucket: no empty part, no `.` or `..`, no control characters."""
    return not any(part in ("", ".", "..") for part in key.split("/")) and not any(
        char < " " or char == "\x7f" for char in key
    )
