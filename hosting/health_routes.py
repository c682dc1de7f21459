"""Liveness, readiness and metrics."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from hosting import metrics
from hosting.services import services_of
from loaders.errors import ProfileError

_READY_SECONDS = 30.0


async def healthz(request: Request) -> Response:
    """This replica answers."""
    return PlainTextResponse("ok\n")


async def readyz(request: Request) -> Response:
    """200 once a shard has parsed a tiny XSpace and the log roots were listed for the first time; else 503 and why."""
    services = services_of(request)
    try:
        await asyncio.wait_for(services.shards.self_test(), _READY_SECONDS)
    except TimeoutError:
        return PlainTextResponse("not ready: no shard has finished its self-test yet\n", 503, {"Retry-After": "2"})
    except ProfileError as error:
        return PlainTextResponse(f"not ready: {error}\n", 503, {"Retry-After": "2"})
    if services.sessions.latest() is None:
        return PlainTextResponse("not ready: the log roots are being listed\n", 503, {"Retry-After": "2"})
    return PlainTextResponse("ready\n")


async def show_metrics(request: Request) -> Response:
    """Every replica's counts, for Prometheus."""
    services = services_of(request)
    snapshot = services.sessions.latest()
    metrics.SESSIONS.set(len(snapshot.sessions) if snapshot else 0)
    others = await services.gateways() if services.gateways is not None else {}
    texts = {**others, services.name: metrics.exposition(), **await services.shards.metrics()}
    merged = await asyncio.to_thread(metrics.merge, texts)
    return Response(merged, media_type="text/plain; version=0.0.4; charset=utf-8")


ROUTES = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", show_metrics)]
