"""What the clients of object stores raise, in our words."""

from __future__ import annotations

import re
from typing import Final

from obstore.exceptions import (
    InvalidPathError,
    NotModifiedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from loaders.errors import AccessDenied, NotFound, ObjectChanged, ProfileError, StoreUnreachable

_STATUS: Final = re.compile(r"status code: (\d{3})")
_LONGEST: Final = 300


def explain(error: Exception, what: str, place: str, *, remedy: str) -> ProfileError:
    """The error to raise for one of obstore's, or of the network.

    Args:
        what: the uri that was asked for.
        place: the bucket's uri, or the endpoint.
        remedy: what to do when credentials are refused.
    """
    if isinstance(error, ProfileError):
        return error
    if isinstance(error, FileNotFoundError):
        return not_found(what)
    if isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
        return refused(what, remedy)
    if isinstance(error, (PreconditionError, NotModifiedError)):
        return changed(what)
    text = brief(error)
    if isinstance(error, InvalidPathError):
        return StoreUnreachable(
            f"{what} cannot be listed: it holds an object with an empty part, '.' or '..' in its name ({text}). "
            "Rename that object, or give a log root that does not contain it.",
            retry_after=None,
        )
    match = _STATUS.search(str(error))
    return by_status(int(match[1]) if match else None, text, what, place, remedy=remedy)


def by_status(status: int | None, text: str, what: str, place: str, *, remedy: str) -> ProfileError:
    """The error to raise for an HTTP status, or for none at all."""
    if status == 404:
        return not_found(what)
    if status in (401, 403):
        return refused(what, remedy)
    if status == 412:
        return changed(what)
    if status == 429:
        return StoreUnreachable(f"{place} asks us to slow down (429) while {what} is read. Try again in a moment.")
    if status is not None and 300 <= status < 400:
        return StoreUnreachable(f"{place} redirects us ({status}) for {what}. Check the bucket's region or endpoint.")
    if status is not None and status >= 500:
        return StoreUnreachable(f"{place} answers {status} for {what}. Try again in a moment.")
    return StoreUnreachable(f"{what} cannot be read from {place}: {text}. Check the network and the endpoint.")


def not_found(what: str) -> NotFound:
    """For an object or bucket that is not there."""
    return NotFound(f"{what} does not exist, or was deleted after it was listed.")


def no_bucket(bucket: str) -> NotFound:
    """For a listing of a bucket that is not there."""
    return NotFound(f"The bucket {bucket} does not exist. Create it, or correct the log root.")


def refused(what: str, remedy: str) -> AccessDenied:
    """For credentials that are missing or not enough."""
    return AccessDenied(f"Access to {what} is denied. {remedy}")


def changed(what: str) -> ObjectChanged:
    """For an object that is not the one that was listed any more."""
    return ObjectChanged(f"{what} has changed since it was listed. Try again in a moment.")


def brief(error: BaseException) -> str:
    """The first line of an error's message, without its debug dump."""
    text = str(error).strip().partition("\n")[0].strip().rstrip(".")
    return (text or type(error).__name__)[:_LONGEST]
