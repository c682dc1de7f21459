"""Why the service does not start."""

from __future__ import annotations


class CannotServe(Exception):
    """A reason not to start, in words for the person at the terminal."""
