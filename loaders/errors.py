"""What can go wrong while a profile is looked up, fetched or parsed, as one small family of exceptions.

Every error carries a stable `code`, a sentence for people that names the thing and the remedy, and the HTTP status that
says the same. They are plain picklable exceptions, so they cross process and replica boundaries unchanged.
"""

from __future__ import annotations

from typing import ClassVar


class ProfileError(Exception):
    """Base of all expected failures. `str(error)` is a sentence fit to be shown to the user."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"

    def __init__(self, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[object, tuple[str, int | None]]:
        return (_rebuild, (type(self), self.message, self.retry_after))  # type: ignore[return-value]


def _rebuild(kind: type[ProfileError], message: str, retry_after: int | None) -> ProfileError:
    return kind(message, retry_after=retry_after)


class BadParameter(ProfileError):
    """A request parameter that cannot be understood or is not allowed."""

    status = 400
    code = "bad_parameter"


class NotFound(ProfileError):
    """A session, host, tool, module or object that does not exist."""

    status = 404
    code = "not_found"


class AccessDenied(ProfileError):
    """The store refuses our credentials for this object or listing."""

    status = 403
    code = "forbidden"


class StoreUnreachable(ProfileError):
    """The store does not answer, or answers with errors of its own."""

    status = 503
    code = "unreachable"

    def __init__(self, message: str, *, retry_after: int | None = 10) -> None:
        super().__init__(message, retry_after=retry_after)


class ObjectChanged(ProfileError):
    """The object is no longer the one that was listed; listing again and retrying gives a fresh answer."""

    status = 503
    code = "changed"

    def __init__(self, message: str, *, retry_after: int | None = 1) -> None:
        super().__init__(message, retry_after=retry_after)


class CorruptTransfer(ProfileError):
    """Bytes arrived that do not match the object's checksum, repeatedly."""

    status = 503
    code = "corrupt_transfer"

    def __init__(self, message: str, *, retry_after: int | None = 5) -> None:
        super().__init__(message, retry_after=retry_after)


class InvalidProfile(ProfileError):
    """A file that is not a whole XSpace: foreign, empty, truncated or corrupt."""

    status = 422
    code = "invalid_profile"


class ProfileTooLarge(ProfileError):
    """A file beyond what protobuf can parse (2 GiB)."""

    status = 413
    code = "too_large"


class EngineCrashed(ProfileError):
    """The engine's process died while it worked on this request."""

    status = 502
    code = "engine_crashed"


class EngineFailed(ProfileError):
    """The engine answered that it cannot produce this tool from these files."""

    status = 502
    code = "engine_failed"


class DeadlineExceeded(ProfileError):
    """The engine did not finish within its deadline and was stopped."""

    status = 504
    code = "deadline_exceeded"


class OutOfMemory(ProfileError):
    """The engine went over its memory limit and was stopped."""

    status = 507
    code = "out_of_memory"


class DiskFull(ProfileError):
    """There is no room left for a download, for scratch files or for a result."""

    status = 507
    code = "disk_full"


class ShardLost(ProfileError):
    """The replica that worked on this request died, and so did the one that tried again."""

    status = 502
    code = "shard_lost"


class Overloaded(ProfileError):
    """More work is waiting than this instance accepts."""

    status = 429
    code = "overloaded"

    def __init__(self, message: str, *, retry_after: int | None = 5) -> None:
        super().__init__(message, retry_after=retry_after)
