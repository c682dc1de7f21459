"""The id of the request that the running code works for, so that every log line can carry it."""

from __future__ import annotations

from contextvars import ContextVar

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Set at the gateway, set again in the shard and in the engine process, to which it travels with the work."""
