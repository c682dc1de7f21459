"""The Ray Serve application: which deployments there are and how they are bound to each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from hosting.affinity_router import AffinityRouter
from hosting.catalog_service import CatalogService
from hosting.front import gateway_count
from hosting.gateway import Gateway, ListeningGateway
from hosting.settings import Settings, load_settings
from hosting.shard import Shard

NAME: Final = "xprof-hosting"

# Replicas queue and bound work themselves: an awaiting request costs a few KB, and a replica that turned one away would
# send it to a shard that does not hold its files.
_ONGOING: Final = 10_000

# Ray types its settings' constructor as taking dictionaries only.
_ROUTER: Final[RequestRouterConfig] = RequestRouterConfig.model_validate(
    {"request_router_class": AffinityRouter, "initial_backoff_s": 0.01, "max_backoff_s": 0.1}
)


def application(
    settings: Settings, lender: Path | None = None, placement: Mapping[str, float] = MappingProxyType({})
) -> Application:
    """The application with these settings, ready for `serve.run`.

    Args:
        lender: where gateways get the socket to take HTTP from; without one Ray Serve's proxies do it.
        placement: Ray resources that gateways need.
    """
    quiet = {"enable_access_log": False}
    shards = serve.deployment(
        name="shard",
        num_replicas=settings.shards,
        max_ongoing_requests=_ONGOING,
        ray_actor_options={"num_cpus": 0.1},
        request_router_config=_ROUTER,
        # A shard that hangs is replaced within some 20 s; its calls go to the next one then.
        health_check_period_s=5,
        health_check_timeout_s=5,
        graceful_shutdown_timeout_s=20,
        graceful_shutdown_wait_loop_s=0.5,
        logging_config=quiet,
    )(Shard).bind(settings)
    catalog = serve.deployment(
        name="catalog",
        num_replicas=1,
        max_ongoing_requests=_ONGOING,
        ray_actor_options={"num_cpus": 0.05},
        # Gateways always have a call waiting here for news; there is nothing to finish for them.
        graceful_shutdown_timeout_s=0.5,
        graceful_shutdown_wait_loop_s=0.1,
        logging_config=quiet,
    )(CatalogService).bind(settings, shards)
    gateway = serve.deployment(
        name="gateway",
        num_replicas=gateway_count(settings, retried=lender is None),
        max_ongoing_requests=_ONGOING,
        ray_actor_options={"num_cpus": 0.1, "resources": dict(placement)},
        # How soon a dead one is noticed: until then, its clients wait.
        health_check_period_s=1,
        graceful_shutdown_wait_loop_s=0.5,
        logging_config=quiet,
    )
    if lender is not None:
        return gateway(ListeningGateway).bind(settings, shards, catalog, lender)
    return gateway(serve.ingress()(Gateway)).bind(settings, shards, catalog)


def build(arguments: dict[str, Any]) -> Application:
    """What a Serve config's `import_path: hosting.application:build` calls, with the settings as its `args`."""
    return application(load_settings(arguments))
