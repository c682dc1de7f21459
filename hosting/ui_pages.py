"""The UI's document and files, and the pages shown instead: nothing found yet, and links to what is not there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from hosting.pages import PAGE_HEADERS, near_names, no_sessions_page, not_found_page
from hosting.services import services_of
from hosting.session_scope import any_root, find_session, path_parameter, sessions_in_scope
from hosting.ui_routes import PREFIX
from loaders.errors import BadParameter, NotFound
from loaders.sessions import Snapshot
from loaders.tools import ALL_HOSTS


async def page(request: Request) -> Response:
    """The UI's document, or one of its files. A link to a session or host that does not exist is a 404 that says so:
    the UI itself would silently show the first one instead."""
    services = services_of(request)
    path = request.path_params.get("path", "")
    name = path.rsplit("/", 1)[-1]
    if "." in name.split(";")[0]:
        return _asset(request, name)
    snapshot = await services.sessions.snapshot()
    dead = _dead_link(snapshot, request, path)
    if dead is not None:
        return dead
    if not snapshot.sessions and not path_parameter(request):
        status = 503 if any_root(snapshot, "unreachable") else 403 if any_root(snapshot, "forbidden") else 200
        refreshing = any(root.status == "listing" for root in snapshot.roots)
        return HTMLResponse(no_sessions_page(snapshot.roots, refreshing), status, dict(PAGE_HEADERS))
    return _asset(request, "index.html")


async def root_asset(request: Request) -> Response:
    """The UI's files at the root, where the browser's preload scanner looks before the document sets its base."""
    return _asset(request, request.path_params["name"])


ROUTES: Final[Sequence[Route]] = [
    Route(f"{PREFIX}/{{path:path}}", page),
    Route(PREFIX, page),
    Route("/local", page),
    Route("/", page),
    Route("/{name}", root_asset),
]


def _asset(request: Request, name: str) -> Response:
    asset = services_of(request).assets.get(name)
    if asset is None:
        raise NotFound(f"There is nothing at {request.url.path}.")
    answer = asset.answer(
        request.headers.get("accept-encoding"),
        request.headers.get("if-none-match"),
        request.query_params.get("v") if name != "index.html" else None,
    )
    return Response(answer.body, answer.status, dict(answer.headers))


def _dead_link(snapshot: Snapshot, request: Request, path: str) -> Response | None:
    """The 404 page for an address whose session or host does not exist, or None."""
    given = _matrix_parameters(path) | dict(request.query_params)
    home = f"{PREFIX}/"
    try:
        scope = sessions_in_scope(snapshot, request)
    except (NotFound, BadParameter) as error:
        what = f"Session {path_parameter(request)}"
        return HTMLResponse(not_found_page(what, str(error), home=home), 404, dict(PAGE_HEADERS))
    run = given.get("run", "").rstrip("/")
    if not run:
        return None
    session = find_session(snapshot, scope, run)
    if session is None:
        near = near_names(run, [found.name for found in scope])
        detail = "It may have been deleted or renamed, or not be listed yet: new sessions appear within a minute."
        links = [(name, f"{home}?run={quote(name, safe='')}") for name in near]
        return HTMLResponse(not_found_page(f"Session {run}", detail, links, home=home), 404, dict(PAGE_HEADERS))
    known = {item.host for item in session.hosts} | {ALL_HOSTS}
    hosts = given.get("hosts", "")
    asked = [given.get("host", ""), *([hosts] if hosts in known else hosts.split(","))]
    for host in asked:
        if host and host not in known:
            near = near_names(host, known) or sorted(known - {ALL_HOSTS})[:5]
            links = [(name, f"{home}?run={quote(run, safe='')}&host={quote(name, safe='')}") for name in near]
            detail = f"Session {run} has {len(known) - 1} hosts, and none of this name."
            return HTMLResponse(not_found_page(f"Host {host}", detail, links, home=home), 404, dict(PAGE_HEADERS))
    return None


def _matrix_parameters(path: str) -> dict[str, str]:
    """The parameters in an address of Angular's other form, `<tool>;run=…;host=…`."""
    pairs = ((part.split("=", 1)[0], part.split("=", 1)[1]) for part in path.split(";")[1:] if "=" in part)
    return dict(pairs)
