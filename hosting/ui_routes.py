"""The XProf UI and its API: the routes, parameters, types and bodies of `xprof server` (2.24.2), over every session.

Errors are plain text, which the UI shows in its banner.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from xprof.convert import csv_writer

from hosting import metrics
from hosting.assets import CONTENT_SECURITY_POLICY
from hosting.encodings import etag_for, matches, negotiate
from hosting.services import services_of
from hosting.session_scope import named_session, path_parameter, raise_if_unreadable, sessions_in_scope
from loaders.engines import tasks
from loaders.errors import BadParameter
from loaders.jobs import plan_job
from loaders.records import Record
from loaders.tools import TOOLS, canonical_parameters, find_tool, listed_hosts

PREFIX: Final = "/data/plugin/profile"
_SECURITY: Final = {"Content-Security-Policy": CONTENT_SECURITY_POLICY, "X-Content-Type-Options": "nosniff"}
_REVALIDATE: Final = {"Cache-Control": "private, no-cache"}
# Proxies refuse headers of more than some 8 KB.
_NAMED_HOSTS: Final = 20
_DEFAULT_CACHE_TOOLS: Final = "overview_page,trace_viewer@"


async def runs(request: Request) -> Response:
    """The names of the runs, newest name first. When no log root can be read, says so instead."""
    snapshot = await services_of(request).sessions.snapshot()
    names = [session.name for session in sessions_in_scope(snapshot, request)]
    if not names and not path_parameter(request):
        raise_if_unreadable(snapshot)
    return _json(names)


async def run_tools(request: Request) -> Response:
    """The tools that a run offers, in the stock server's order; hosts that cannot be read are named in a header."""
    services = services_of(request)
    session = await named_session(services, request)
    found = await services.inspection(session)
    return _json(found["tools"], _left_out_header(found["left_out"]))


async def hosts(request: Request) -> Response:
    """The hosts that the UI offers for a run and a tool."""
    session = await named_session(services_of(request), request)
    tool = TOOLS.get(request.query_params.get("tag", ""))
    names = listed_hosts(tool, [item.host for item in session.hosts])
    return _json([{"hostname": name} for name in names])


async def module_list(request: Request) -> Response:
    """The run's HLO modules, joined by commas."""
    services = services_of(request)
    found = await services.inspection(await named_session(services, request))
    return PlainTextResponse(",".join(found["modules"]), headers={**_SECURITY, **_REVALIDATE})


async def data(request: Request) -> Response:
    """A tool's data."""
    key, record = await _record(request)
    if record is None:
        return Response(status_code=304, headers={"ETag": key, "Vary": "Accept-Encoding", **_REVALIDATE})
    encoding = negotiate(request.headers.get("accept-encoding"), record.encodings)
    headers = {
        "ETag": etag_for(key[:32], encoding),
        "Vary": "Accept-Encoding",
        "X-XProf-Hosting-Engine": record.header.engine,
        **_left_out_header(record.header.left_out),
        **({"X-XProf-Hosting-Hidden-Events": str(hidden)} if (hidden := record.header.hidden_events) else {}),
        **_SECURITY,
        **_REVALIDATE,
    }
    if encoding == "identity":
        body = await asyncio.to_thread(record.body, encoding)
    else:
        headers["Content-Encoding"] = encoding
        body = record.body(encoding)
    return Response(body, media_type=record.header.content_type, headers=headers)


async def data_csv(request: Request) -> Response:
    """A tool's table as a CSV file."""
    _, record = await _record(request, conditional=False)
    assert record is not None
    if not record.header.content_type.startswith("application/json"):
        raise BadParameter("CSV format not supported for this tool type: its data is no table.")
    try:
        text = await asyncio.to_thread(lambda: csv_writer.json_to_csv_string(record.body("identity")))
    except (ValueError, AttributeError, TypeError) as error:
        raise BadParameter(f"CSV format not supported for this tool type: {error}.") from None
    name = _csv_name(request)
    headers = {"Content-Disposition": f'attachment; filename="{name}"', **_SECURITY, **_REVALIDATE}
    return Response(text, media_type="text/csv", headers=headers)


async def version(request: Request) -> Response:
    """The engine's version, as the stock server says it."""
    return PlainTextResponse(tasks.ENGINE.split()[-1], headers=_SECURITY)


async def config(request: Request) -> Response:
    """The UI's configuration."""
    settings = services_of(request).settings
    return _json(
        {
            "hideCaptureProfileButton": settings.hide_capture_profile_button,
            "srcPathPrefix": settings.src_prefix,
            "enableTabNameLabel": settings.enable_tab_name_label,
        }
    )


async def capture_profile(request: Request) -> Response:
    """Refuses: the UI captures by a GET, which any page that a viewer opens could make the browser send."""
    message = (
        "This service does not capture profiles through the XProf UI. Capture with jax.profiler or your framework."
    )
    return JSONResponse({"error": message}, status_code=501, headers=_SECURITY)


async def generate_cache(request: Request) -> Response:
    """Starts to make tools' data in the background, for whoever opens the session next."""
    if request.method != "POST":
        # Said here, since the route of the UI's pages below this prefix would take a GET.
        raise HTTPException(405, headers={"Allow": "POST"})
    services = services_of(request)
    if not request.query_params.get("session_path"):
        raise BadParameter("Missing 'session_path': the session folder whose tools are to be made.")
    [session] = sessions_in_scope(await services.sessions.snapshot(), request)
    wanted = [part.strip() for part in request.query_params.get("tools", _DEFAULT_CACHE_TOOLS).split(",")]
    services.prewarmer.add(session, [find_tool(name).name for name in wanted])
    return _json({"status": "ACCEPTED", "message": "Cache generation started"}, status=202)


ROUTES: Final[Sequence[Route]] = [
    Route(f"{PREFIX}/data", data),
    Route(f"{PREFIX}/runs", runs),
    Route(f"{PREFIX}/run_tools", run_tools),
    Route(f"{PREFIX}/hosts", hosts),
    Route(f"{PREFIX}/module_list", module_list),
    Route(f"{PREFIX}/data_csv", data_csv),
    Route(f"{PREFIX}/version", version),
    Route(f"{PREFIX}/config", config),
    Route(f"{PREFIX}/capture_profile", capture_profile),
    Route(f"{PREFIX}/generate_cache", generate_cache, methods=["GET", "POST"]),
]


async def _record(request: Request, *, conditional: bool = True) -> tuple[str, Record | None]:
    """The record that a request asks for with its key, or the entity tag alone when the client has it already."""
    services = services_of(request)
    query = request.query_params
    session = await named_session(services, request)
    tool = find_tool(query.get("tag"))
    request.scope["xprof_tool"] = tool.name
    split = services.split(session)
    job = await services.up_to_date(
        plan_job(session, tool, canonical_parameters(tool, query), query.get("host"), query.get("hosts"), split=split)
    )
    held = request.headers.get("if-none-match")
    if held and conditional:
        encoding = negotiate(request.headers.get("accept-encoding"), ("gzip", "zstd"))
        tag = etag_for(job.key(services.settings.engine_key)[:32], encoding)
        if held.strip() != "*" and matches(held, tag):
            metrics.RESULTS.labels(tool.name, "not_modified").inc()
            return tag, None
    return await services.tool_data(job, session)


def _json(content: object, headers: dict[str, str] | None = None, status: int = 200) -> Response:
    body = json.dumps(content, sort_keys=True)
    return Response(
        body, status, media_type="application/json", headers={**_SECURITY, **_REVALIDATE, **(headers or {})}
    )


def _left_out_header(left_out: Mapping[str, str]) -> dict[str, str]:
    """The hosts that an answer does not cover, in a header whose value is JSON in ASCII; the first ones of many."""
    if not left_out:
        return {}
    named = dict(islice(left_out.items(), _NAMED_HOSTS))
    if len(left_out) > _NAMED_HOSTS:
        named["…"] = f"and {len(left_out) - _NAMED_HOSTS} more"
    return {"X-XProf-Hosting-Left-Out": json.dumps(named)}


def _csv_name(request: Request) -> str:
    """The file name that the stock server gives: tool, run and the host's part after its last dash."""
    query = request.query_params
    parts = [query.get("tag", "data"), query.get("run", ""), query.get("host", "").split("-")[-1]]
    cleaned = [re.sub(r"[^a-zA-Z0-9_\-]", "_", part) for part in parts]
    return "_".join(part for part in cleaned if part) + ".csv"
