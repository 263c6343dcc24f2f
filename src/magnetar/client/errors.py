"""What can go wrong with another cluster."""

from __future__ import annotations

from magnetar.base.errors import ClientError


class UnreachableError(ClientError):
    """No connection, or it ended, or no answer came in time."""

    slug = "unreachable"
    retriable = True


class RequestRefusedError(ClientError):
    """The other side answered with an error. `code` is its ServerError (or the HTTP status of an admin call)."""

    slug = "request-refused"

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
