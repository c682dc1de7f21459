"""The gateway: the Ray Serve deployment that answers HTTP, behind Serve's proxies or by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from hosting import metrics
from hosting.assets import AssetLibrary
from hosting.catalog_service import CatalogView
from hosting.gateway_app import create_app
from hosting.gateway_server import GatewayServer
from hosting.logs import configure_logs
from hosting.services import Services
from hosting.settings import Settings, store_options
from hosting.shard_client import ShardClient, metrics_of
from hosting.shared_socket import BorrowedSocket
from loaders.result_store import ResultStore


class Gateway:
    """Holds what a gateway replica needs and builds its ASGI application inside the replica."""

    def __init__(self, settings: Settings, shards: DeploymentHandle[Any], catalog: DeploymentHandle[Any]) -> None:
        configure_logs("gateway", settings.log_level, settings.state_dir / "logs")
        self._catalog = CatalogView(catalog)
        self._services = Services(
            settings=settings,
            assets=AssetLibrary.prepare(settings.state_dir / "assets"),
            sessions=self._catalog,
            shards=ShardClient(shards),
            results=ResultStore(settings.results_uri, store_options(), max_bytes=settings.results_bytes),
            name=f"gateway-{serve.get_replica_context().replica_id.unique_id}",
            gateways=_gateways,
        )

    async def metrics(self) -> tuple[str, str]:
        """This replica's name and counts."""
        return self._services.name, metrics.exposition()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return self._app(behind_serve=True)

    def _app(self, *, behind_serve: bool) -> ASGIApp:
        self._catalog.start()
        return create_app(self._services, behind_serve=behind_serve)


class ListeningGateway(Gateway):
    """A gateway that takes HTTP itself, on the socket that is lent at a path, where Ray Serve runs no proxy."""

    def __init__(
        self, settings: Settings, shards: DeploymentHandle[Any], catalog: DeploymentHandle[Any], lender: Path
    ) -> None:
        super().__init__(settings, shards, catalog)
        self._server = GatewayServer(lambda: self._app(behind_serve=False), BorrowedSocket(lender))
        self._server.start()

    def check_health(self) -> None:
        """Raises RuntimeError when the server has ended: Ray Serve then replaces the replica."""
        if not self._server.is_running:
            raise RuntimeError("the gateway's HTTP server has ended")

    async def __del__(self) -> None:
        await asyncio.to_thread(self._server.stop)


async def _gateways() -> dict[str, str]:
    """The metrics of all gateway replicas."""
    return await metrics_of(serve.get_deployment_handle("gateway", serve.get_replica_context().app_name))
