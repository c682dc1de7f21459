"""XProf's own worker service in this engine process, for the map of one host.

The native server has no setting for its address and listens on every interface; `limits.enter_child` gives each engine
process a network of its own where the platform allows, so that nobody else can reach it.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import grpc
from xprof.convert import _pywrap_profiler_plugin

from loaders.engines.worker_protocol import METHOD, WorkerProfileDataRequest, WorkerProfileDataResponse

_READY_SECONDS = 10.0


class MapWorker:
    """The worker and a channel to it. One per process: XProf starts no second server."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        _pywrap_profiler_plugin.start_grpc_server(port, 1)
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)])
        grpc.channel_ready_future(self._channel).result(timeout=_READY_SECONDS)
        self._call = self._channel.unary_unary(
            METHOD,
            request_serializer=WorkerProfileDataRequest.SerializeToString,
            response_deserializer=WorkerProfileDataResponse.FromString,
        )

    def map_host(self, xplane: Path, tool: str) -> Path:
        """Makes the map output of one host's file beside it and returns its path.

        Raises:
            grpc.RpcError: the worker says why it can't.
        """
        request: Any = WorkerProfileDataRequest()
        request.origin_request.session_id = str(xplane)
        request.origin_request.tool_name = tool
        request.origin_request.parameters["use_saved_result"] = "false"
        return Path(self._call(request).output.decode())
