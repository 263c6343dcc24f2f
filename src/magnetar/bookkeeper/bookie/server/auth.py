"""Who may talk to a bookie: a hook in the form of BookKeeper's BookieAuthProvider. Without one, everybody who reaches the port may."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from magnetar.base.errors import MagnetarError
from magnetar.bookkeeper.bookie.server.connection import FrameConnection
from magnetar.wire.bookkeeper.BookkeeperProtocol_pb2 import AuthMessage
from magnetar.wire.bookkeeper.frames import BookieFrameError

DISABLED_PLUGIN: Final = "AuthDisabledPlugin"
"""The plugin name by which a bookie says that it asks for nothing; clients take it for success."""


class AuthSession(Protocol):
    """The conversation with one client."""

    @property
    def passed(self) -> bool:
        """The client is known; its requests are served from now on."""
        ...

    def process(self, payload: bytes) -> bytes:
        """The answer to the client's message. Raises a MagnetarError when it is refused: the connection ends."""
        ...


class BookieAuth(Protocol):
    """A way to authenticate. `plugin_name`: what clients have to call it."""

    @property
    def plugin_name(self) -> str: ...

    def new_session(self, connection: FrameConnection) -> AuthSession:
        """For a new connection; `connection.ssl_object` shows its certificate, `connection.peer` its address."""
        ...


class ConnectionAuth:
    """Of one connection: `passed`, and `answer` to AUTH messages of either protocol.

    `tls_required`: nobody has passed in the clear, and nothing that proves who one is counts there. `on_passed()` is called when
    `passed` becomes true.
    """

    __slots__ = ("_auth", "_connection", "_on_passed", "_secured", "_session", "passed")

    def __init__(
        self,
        auth: BookieAuth | None,
        connection: FrameConnection,
        on_passed: Callable[[], None],
        *,
        tls_required: bool = False,
    ) -> None:
        self._auth = auth
        self._connection = connection
        self._on_passed = on_passed
        self._session: AuthSession | None = None
        self._secured = not tls_required
        self.passed = auth is None and self._secured

    def secured(self) -> None:
        """TLS is spoken from now on."""
        if not self._secured:
            self._secured = True
            if self._auth is None:
                self._pass()

    def answer(self, asked: AuthMessage) -> AuthMessage:
        """The answer to a client's message. Raises BookieFrameError when the client is refused."""
        if not self._secured:
            raise BookieFrameError("authentication in the clear, this bookie asks for TLS first")
        if self._auth is None:
            return AuthMessage(authPluginName=DISABLED_PLUGIN, payload=b"")
        if asked.authPluginName != self._auth.plugin_name:
            raise BookieFrameError(
                f"authentication by {asked.authPluginName!r}, this bookie asks for {self._auth.plugin_name!r}"
            )
        if self._session is None:
            self._session = self._auth.new_session(self._connection)
        try:
            payload = self._session.process(asked.payload)
        except MagnetarError as error:
            raise BookieFrameError(f"authentication refused: {error}") from error
        if self._session.passed and not self.passed:
            self._pass()
        return AuthMessage(authPluginName=self._auth.plugin_name, payload=payload)

    def _pass(self) -> None:
        self.passed = True
        self._on_passed()
