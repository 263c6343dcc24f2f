"""What can go wrong with another server: a broker of another cluster, or any HTTP server."""

from __future__ import annotations

from magnetar.base.errors import ClientError


class UnreachableError(ClientError):
    """No connection, or it ended, or no answer came in time."""

    slug = "unreachable"
    retriable = True


class ServerUnreachableError(ClientError):
    """No HTTP server answers at the address. Whether the request took effect is not known."""

    slug = "server-unreachable"
    retriable = True

    def __init__(self, text: str, *, place: str = "", unsent: bool = False) -> None:
        """`place`: the server that was asked, which a redirect may have named. `unsent`: the request certainly took no effect."""
        super().__init__(text)
        self.place = place
        self.unsent = unsent


class BadAnswerError(ClientError):
    """An HTTP server answered with something that cannot be followed."""

    slug = "bad-answer"


class RequestRefusedError(ClientError):
    """The other side answered with an error. `code` is its ServerError (or the HTTP status of an admin call)."""

    slug = "request-refused"

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
