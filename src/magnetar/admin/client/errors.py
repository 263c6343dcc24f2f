"""What a call of the admin API may fail with: one tree, below `AdminClientError`.

AdminClientError
  UnreachableError         nobody answers at the address
  AnswerError              what answers there is no admin API
  RefusedError             the server says no; `status` and `reason` are what it said
    BadRequestError 400 · UnauthorizedError 401 · ForbiddenError 403 · NotFoundError 404 · NotAllowedError 405
    ConflictError 409 · PreconditionFailedError 412 · UnprocessableError 422 · ServerFailedError 5xx
"""

from __future__ import annotations

from magnetar.base.errors import MagnetarError


class AdminClientError(MagnetarError):
    """A call of the admin API did not succeed."""

    slug = "admin-client"


class UnreachableError(AdminClientError):
    """Nobody serves at the address, or it does not answer in time. Whether the call took effect is not known."""

    slug = "admin-unreachable"
    retriable = True

    def __init__(self, text: str, *, place: str = "", unsent: bool = False) -> None:
        """`place`: the server that was asked, which a redirect may have named. `unsent`: the call certainly took no effect."""
        super().__init__(text)
        self.place = place
        self.unsent = unsent


class AnswerError(AdminClientError):
    """The answer is not what an admin API says."""

    slug = "admin-answer"


class RefusedError(AdminClientError):
    """The server answered with an error."""

    slug = "admin-refused"

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{reason} (HTTP {status})")
        self.status = status
        self.reason = reason


class BadRequestError(RefusedError):
    """A value or a body is malformed."""

    slug = "admin-bad-request"


class UnauthorizedError(RefusedError):
    """The credential is missing or not valid."""

    slug = "admin-unauthorized"


class ForbiddenError(RefusedError):
    """The role may not do this."""

    slug = "admin-forbidden"


class NotFoundError(RefusedError):
    """The tenant, namespace, topic or whatever is named does not exist."""

    slug = "admin-not-found"


class NotAllowedError(RefusedError):
    """Not for this kind of topic."""

    slug = "admin-not-allowed"


class ConflictError(RefusedError):
    """It exists already, or something else is in the way."""

    slug = "admin-conflict"


class PreconditionFailedError(RefusedError):
    """A name is not valid, or the present state or a limit forbids it."""

    slug = "admin-precondition-failed"


class UnprocessableError(RefusedError):
    """The schema is not valid."""

    slug = "admin-unprocessable"


class ServerFailedError(RefusedError):
    """The server, or a part of it, cannot do its work now."""

    slug = "admin-server-failed"
    retriable = True


BY_STATUS: dict[int, type[RefusedError]] = {
    400: BadRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    405: NotAllowedError,
    409: ConflictError,
    412: PreconditionFailedError,
    422: UnprocessableError,
}


def refused(status: int, reason: str) -> RefusedError:
    """The error of a status."""
    kind = BY_STATUS.get(status, ServerFailedError if status >= 500 else RefusedError)
    return kind(status, reason)
