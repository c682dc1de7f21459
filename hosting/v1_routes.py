"""Our JSON API: the log roots and the sessions."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel

from hosting.services import Services, services_of
from loaders.errors import NotFound
from loaders.sessions import RootState, Session

router = APIRouter(prefix="/v1")


class HostView(BaseModel):
    """One host's file."""

    host: str
    uri: str
    bytes: int
    modified: datetime


class SessionView(BaseModel):
    """A session as the catalog knows it."""

    name: str
    root: str
    uri: str
    hosts: list[HostView]
    bytes: int
    modified: datetime
    complete: bool


class SkippedView(BaseModel):
    """An object that was seen and left out, and why."""

    uri: str
    reason: str


class RootView(BaseModel):
    """A log root: where was looked, what came of it, what was skipped and why."""

    name: str
    uri: str
    status: str
    message: str
    objects: int
    list_requests: int
    skipped: dict[str, int]
    skipped_examples: list[SkippedView]
    listed_at: datetime | None
    seconds: float


class SessionList(BaseModel):
    """Sessions, newest name first, and the state of the roots they come from."""

    sessions: list[SessionView]
    total: int
    next_offset: int | None
    roots: list[RootView]


class HostPlanView(BaseModel):
    """Where one host's file is parsed, and what that may take."""

    host: str
    bytes: int
    predicted_peak_bytes: int
    shard: str


class PlanView(BaseModel):
    """How a session is opened: whole on one shard, or split over the shards by host, and why."""

    session: str
    split: bool
    reason: str
    bytes: int
    budget_bytes: int
    shard: str
    engine: str
    engine_processes: int
    engine_memory_bytes: int
    hosts: list[HostPlanView]


class SessionDetail(SessionView):
    """A session with what its files offer."""

    tools: list[str]
    modules: list[str]
    left_out: dict[str, str]


@router.get("/sessions", summary="List sessions")
async def list_sessions(
    request: Request,
    q: Annotated[str, Query(description="Only sessions whose name contains this.")] = "",
    root: Annotated[str | None, Query(description="Only sessions of the log root of this name.")] = None,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> SessionList:
    """The sessions of all log roots. With none, `roots` tells apart nothing found, forbidden and unreachable."""
    snapshot = await services_of(request).sessions.snapshot()
    found = [s for s in snapshot.sessions if q in s.name and root in (None, s.root)]
    page = found[offset : offset + limit]
    end = offset + len(page)
    return SessionList(
        sessions=[SessionView(**_session(session)) for session in page],
        total=len(found),
        next_offset=end if end < len(found) else None,
        roots=[_root(state) for state in snapshot.roots],
    )


@router.get(
    "/sessions/{name:path}",
    summary="Show a session",
    responses={
        400: {"description": "There is no such view."},
        404: {"description": "There is no such session."},
        422: {"description": "None of its files is a profile."},
    },
)
async def show_session(
    request: Request,
    name: str,
    view: Annotated[
        Literal["full", "plan"], Query(description="`plan`: how the session is opened, without opening it.")
    ] = "full",
) -> SessionDetail | PlanView:
    """One session with its tools, its HLO modules, and the hosts whose files cannot be read; or the plan by which it is
    opened."""
    services = services_of(request)
    session = (await services.sessions.snapshot()).find(name)
    if session is None:
        raise NotFound(f"There is no session '{name}'. It may have been deleted or renamed, or not be listed yet.")
    if view == "plan":
        return _plan(services, session)
    found = await services.inspection(session)
    return SessionDetail(**_session(session), **found)


def _plan(services: Services, session: Session) -> PlanView:
    plan, limits = services.plan(session), services.settings.engine_limits
    return PlanView(
        session=session.name,
        split=plan.split,
        reason=plan.reason,
        bytes=plan.bytes,
        budget_bytes=plan.budget_bytes,
        shard=plan.shard,
        engine=services.settings.engine_key,
        engine_processes=limits.processes,
        engine_memory_bytes=limits.memory_bytes,
        hosts=[HostPlanView(**asdict(item)) for item in plan.hosts],
    )


def _session(session: Session) -> dict[str, Any]:
    return {
        "name": session.name,
        "root": session.root,
        "uri": session.uri,
        "hosts": [
            HostView(host=item.host, uri=item.file.uri, bytes=item.file.size, modified=_when(item.file.modified))
            for item in session.hosts
        ],
        "bytes": sum(item.file.size for item in session.hosts),
        "modified": _when(session.modified),
        "complete": session.complete,
    }


def _root(state: RootState) -> RootView:
    return RootView(
        name=state.name,
        uri=state.uri,
        status=state.status,
        message=state.message,
        objects=state.objects,
        list_requests=state.requests,
        skipped=dict(state.skipped_counts),
        skipped_examples=[SkippedView(uri=item.uri, reason=item.reason) for item in state.skipped],
        listed_at=_when(state.listed_at) if state.listed_at else None,
        seconds=state.took,
    )


def _when(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
