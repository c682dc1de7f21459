"""The gateway's ASGI application: routes, and the one place where errors become answers."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from hosting import health_routes, ui_pages, ui_routes, v1_routes
from hosting.pages import PAGE_HEADERS, error_page
from hosting.request_scope import RequestScope
from hosting.services import Services
from loaders.errors import ProfileError
from loaders.request_context import request_id

_TITLES = {
    400: "That address is not understood",
    403: "Access is denied",
    404: "Not found",
    413: "The profile is too large",
    422: "The profile cannot be read",
    429: "Too much at once",
    503: "Not available just now",
    504: "It took too long",
    507: "Not enough room",
}


def create_app(services: Services, *, behind_serve: bool = False) -> FastAPI:
    """The application that serves the UI, our API, health and metrics with these services; `behind_serve` says whether
    Ray Serve's proxies are in front of it."""
    app = FastAPI(
        title="XProf hosting",
        summary="XProf for many people and many profiles.",
        docs_url=None,
        redoc_url=None,
        middleware=[Middleware(RequestScope, behind_serve=behind_serve)],
        exception_handlers={
            ProfileError: _profile_error,
            HTTPException: _http_error,
            RequestValidationError: _validation_error,
        },
        # In the order of how often they are asked for, since they are tried one after the other.
        routes=[*ui_routes.ROUTES, *health_routes.ROUTES],
    )
    app.state.services = services
    app.include_router(v1_routes.router)
    app.router.routes.extend(ui_pages.ROUTES)
    return app


async def _profile_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProfileError)
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after is not None else {}
    return _answer(request, error.status, error.code, str(error), headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentence = str(error.detail)
    if error.status_code == 404:
        sentence = f"There is nothing at {request.url.path}."
    elif error.status_code == 405:
        sentence = f"{request.method} is not what {request.url.path} takes."
    return _answer(request, error.status_code, "http", sentence, dict(error.headers or {}))


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    sentence = "; ".join(f"{'.'.join(str(part) for part in item['loc'][1:])}: {item['msg']}" for item in error.errors())
    return _answer(request, 400, "bad_parameter", f"The request is not understood: {sentence}.", {})


def _answer(request: Request, status: int, code: str, sentence: str, headers: dict[str, str]) -> Response:
    """JSON for our API, a page for a person's browser, plain text for the UI, which shows it in its banner."""
    headers = {**headers, "X-XProf-Hosting-Error": code, "Cache-Control": "no-store"}
    if request.url.path.startswith("/v1"):
        body = {"error": {"code": code, "message": sentence, "request_id": request_id.get()}}
        return JSONResponse(body, status, headers)
    if request.headers.get("sec-fetch-dest") == "document":
        page = error_page(status, _TITLES.get(status, "Something went wrong"), sentence, request_id.get())
        return HTMLResponse(page, status, {**headers, **PAGE_HEADERS})
    return PlainTextResponse(sentence, status, headers)
