"""What happens around every HTTP request: its id, its log line, its count, and the answer when nothing else answers."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hosting import metrics
from hosting.waiting_client import ClientGone, receive_of_request
from loaders.request_context import request_id

_log = logging.getLogger(__name__)
_SLASHES: Final = re.compile(r"/{2,}")
_WELL_FORMED_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
# A path says which page; anything not in here is counted under one name, so that strangers cannot grow the metrics.
_ROUTES: Final = re.compile(
    r"^/(?:data/plugin/profile/(runs|run_tools|hosts|module_list|data_csv|data|config|version|capture_profile|"
    r"generate_cache)|(v1/[a-z-]+|healthz|readyz|metrics|openapi\.json))(?:/|$)"
)


class RequestScope:
    """ASGI middleware: collapses duplicate slashes, gives the request an id, logs and counts it, and turns an
    unhandled exception into a 500 that names the id."""

    def __init__(self, app: ASGIApp, *, behind_serve: bool = False) -> None:
        self._app = app
        self._behind_serve = behind_serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # The UI's graph viewer asks for //data/plugin/profile/…
        scope["path"] = _SLASHES.sub("/", scope["path"])
        if scope.get("raw_path"):
            scope["raw_path"] = re.sub(rb"/{2,}", b"/", scope["raw_path"])
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        identity = given if _WELL_FORMED_ID.fullmatch(given) else uuid.uuid4().hex
        token = request_id.set(identity)
        receive_of_request.set(receive)
        started = time.monotonic()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # Ray Serve's proxies give every request an id and answer with it themselves.
                if not self._behind_serve:
                    message["headers"] = [*message.get("headers", []), (b"x-request-id", identity.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientGone:
            pass  # counted and logged as 499
        except Exception:
            _log.exception("unhandled error", extra={"path": scope["path"]})
            if status:
                raise
            await _answer_500(send_with_id, scope["path"], identity)
        finally:
            self._account(scope, status or 499, time.monotonic() - started)
            request_id.reset(token)

    def _account(self, scope: Scope, status: int, seconds: float) -> None:
        match = _ROUTES.match(scope["path"])
        route = (match[1] or match[2]) if match else "page"
        metrics.REQUESTS.labels(route, scope.get("xprof_tool", ""), str(status)).inc()
        metrics.REQUEST_SECONDS.labels(route).observe(seconds)
        _log.info(
            "request",
            extra={
                "method": scope["method"],
                "path": scope["path"],
                "query": scope["query_string"].decode("latin-1")[:500],
                "status": status,
                "milliseconds": round(seconds * 1000, 1),
            },
        )


async def _answer_500(send: Send, path: str, identity: str) -> None:
    sentence = f"Something went wrong that should not have. Please report it with the request id {identity}."
    if path.startswith("/v1"):
        body = json.dumps({"error": {"code": "internal", "message": sentence, "request_id": identity}}).encode()
        content_type = b"application/json"
    else:
        body, content_type = sentence.encode(), b"text/plain; charset=utf-8"
    await send({"type": "http.response.start", "status": 500, "headers": [(b"content-type", content_type)]})
    await send({"type": "http.response.body", "body": body})
