"""The bridge between XProf's reduce and our maps: XProf's worker service on loopback, inside the reduce's process.

XProf's reduce asks a worker for each host's map output. The shards have made those outputs before the reduce starts, so
that a reduce never holds a process while it waits for one; the bridge only answers with their paths.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from xprof.convert import _pywrap_profiler_plugin

from loaders.engines.worker_protocol import METHOD, WorkerProfileDataRequest, WorkerProfileDataResponse


class MapBridge(grpc.GenericRpcHandler):
    """Answers `GetProfileData` with the map outputs that `offering` has set out. One per process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outputs: dict[str, str] = {}
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=4), handlers=[self])
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        # Once per process: XProf ignores a second address.
        _pywrap_profiler_plugin.initialize_stubs(f"127.0.0.1:{port}")

    @contextmanager
    def offering(self, outputs: Mapping[Path, Path]) -> Iterator[None]:
        """Offers map outputs, by the path of the host's XPlane file, while the block runs."""
        with self._lock:
            self._outputs = {str(source): str(output) for source, output in outputs.items()}
        try:
            yield
        finally:
            with self._lock:
                self._outputs = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Finds the handler of a call; only `GetProfileData` is known."""
        if handler_call_details.method != METHOD:
            return None
        return grpc.unary_unary_rpc_method_handler(
            self._get_profile_data,
            request_deserializer=WorkerProfileDataRequest.FromString,
            response_serializer=WorkerProfileDataResponse.SerializeToString,
        )

    def _get_profile_data(self, request: Any, context: grpc.ServicerContext) -> Any:
        asked = request.origin_request
        with self._lock:
            prepared = self._outputs.get(asked.session_id)
        if prepared is not None:
            output = prepared.encode()
        else:
            # A tool may ask for more than its own map, as the smart suggestions do; one host's is made here.
            output, success = _pywrap_profiler_plugin.xspace_to_tools_data(
                [asked.session_id], asked.tool_name, dict(asked.parameters)
            )
            if not success:
                # INVALID_ARGUMENT, because XProf tries again after most other codes.
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, output.decode(errors="replace")[:500])
        return WorkerProfileDataResponse(output=output, worker_id="xprof-hosting")
