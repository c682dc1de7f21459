"""Logs as JSON lines, with the id of the request that a line belongs to."""

from __future__ import annotations

import logging
from logging.handlers import WatchedFileHandler
from pathlib import Path

from pythonjsonlogger.json import JsonFormatter

from loaders.request_context import request_id


class _Handler(WatchedFileHandler):
    """Goes on when its file or folder is taken away; a log line must not fail the request that it is about."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            try:
                super().emit(record)
            except FileNotFoundError:
                Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
                super().emit(record)
        except OSError:
            self.handleError(record)


class _OnceFormatter(JsonFormatter):
    """Formats a record once for all handlers: half the cost of a line."""

    def format(self, record: logging.LogRecord) -> str:
        known: str | None = record.__dict__.get("formatted_once")
        if known is None:
            known = record.__dict__["formatted_once"] = super().format(record)
        return known


class _RequestIdFilter(logging.Filter):
    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def filter(self, record: logging.LogRecord) -> bool:
        record.role = self._role
        record.request_id = getattr(record, "request_id", "") or request_id.get()
        return True


def configure_logs(role: str, level: str, folder: Path | None) -> None:
    """Sends this process's log lines to stderr and, where a folder is given, to `<folder>/xprof-hosting.jsonl`.

    Args:
        role: `gateway`, `shard`, `engine`, `catalog` or `serve`; a field of every line.
        level: least level, in lower case.
    """
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        handlers.append(_Handler(folder / "xprof-hosting.jsonl"))
    formatter = _OnceFormatter(
        "{asctime}{levelname}{role}{name}{message}{request_id}{process}",
        style="{",
        rename_fields={"asctime": "time", "levelname": "level"},
    )
    for package in ("hosting", "loaders", "autoscale"):
        logger = logging.getLogger(package)
        logger.setLevel(level.upper())
        logger.propagate = False
        logger.handlers.clear()
        for handler in handlers:
            handler.setFormatter(formatter)
            if not handler.filters:
                handler.addFilter(_RequestIdFilter(role))
            logger.addHandler(handler)
