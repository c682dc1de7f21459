"""Which sessions a request may mean, and which one it names: `run`, within `session_path` or `run_path` where given."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request

from hosting.services import Services
from loaders.errors import AccessDenied, BadParameter, NotFound, StoreUnreachable
from loaders.sessions import Session, Snapshot


def path_parameter(request: Request) -> str | None:
    """The folder that a request is restricted to, if any."""
    return request.query_params.get("session_path") or request.query_params.get("run_path")


def sessions_in_scope(snapshot: Snapshot, request: Request) -> Sequence[Session]:
    """The sessions that a request may mean: one folder's, those below one, or all.

    Raises:
        NotFound: the folder is not below a configured log root, or has no profile.
    """
    session_path, run_path = request.query_params.get("session_path"), request.query_params.get("run_path")
    if session_path:
        session = snapshot.by_uri(session_path)
        if session is None:
            raise NotFound(f"There is no session at {session_path} below the configured log roots.")
        return (session,)
    if run_path:
        found = snapshot.below(run_path)
        if not found:
            raise NotFound(f"There are no sessions in {run_path} below the configured log roots.")
        return found
    return snapshot.sessions


def find_session(snapshot: Snapshot, scope: Sequence[Session], run: str) -> Session | None:
    """The session of this name within a scope."""
    if scope is snapshot.sessions:
        return snapshot.find(run)
    return next((session for session in scope if session.name == run), None)


async def named_session(services: Services, request: Request) -> Session:
    """The session that `run` names, within `session_path` or `run_path` where given.

    Raises:
        BadParameter: no run is named.
        NotFound: there is none of that name.
    """
    snapshot = await services.sessions.snapshot()
    scope = sessions_in_scope(snapshot, request)
    run = request.query_params.get("run", "").rstrip("/")
    if not run:
        raise BadParameter("The parameter 'run' is missing: it names the session, as /runs lists it.")
    session = find_session(snapshot, scope, run)
    if session is None:
        raise NotFound(f"There is no session '{run}'. It may have been deleted or renamed, or not be listed yet.")
    return session


def any_root(snapshot: Snapshot, status: str) -> bool:
    """Whether a log root has this status."""
    return any(root.status == status for root in snapshot.roots)


def raise_if_unreadable(snapshot: Snapshot) -> None:
    """Raises what keeps every log root from being read, unless there are sessions to show."""
    if snapshot.sessions:
        return
    words = " ".join(root.message for root in snapshot.roots)
    if any_root(snapshot, "unreachable"):
        raise StoreUnreachable(words)
    if any_root(snapshot, "forbidden"):
        raise AccessDenied(words)
