"""Authentication between bookies and their clients by a secret that both know and that never travels: challenge and HMAC-SHA256.

    client: its nonce    bookie: its nonce    client: HMAC(secret, label, both nonces)    bookie: nothing more

It shows the bookie who asks. Who answers is shown by TLS, which also keeps others off the connection afterwards.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Final

from magnetar.base.errors import ConfigError
from magnetar.bookkeeper.errors import LedgerUnauthorizedError

PLUGIN_NAME: Final = "magnetar.shared-secret"
SECRET_BYTES_MIN: Final = 16
"""A shorter secret is refused: who sees one proof could try secrets at leisure."""

_NONCE_BYTES: Final = 32
_LABEL: Final = b"magnetar bookie client 1\0"


def _checked(secret: bytes) -> bytes:
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(
            f"the bookies' shared secret has {len(secret)} bytes, at least {SECRET_BYTES_MIN} are needed; "
            "make one with `openssl rand -base64 32`"
        )
    return secret


def _proof(secret: bytes, client_nonce: bytes, bookie_nonce: bytes) -> bytes:
    return hmac.digest(secret, _LABEL + client_nonce + bookie_nonce, "sha256")


class BookieSecret:
    """What a bookie asks its clients for. Implements `BookieAuth`."""

    __slots__ = ("_secret",)
    plugin_name: Final = PLUGIN_NAME

    def __init__(self, secret: bytes) -> None:
        """Raises ConfigError for a secret that is too short."""
        self._secret = _checked(secret)

    def new_session(self, connection: object) -> BookieSecretSession:
        return BookieSecretSession(self._secret)


class BookieSecretSession:
    """One client. Implements `AuthSession`."""

    __slots__ = ("_client_nonce", "_nonce", "_secret", "passed")

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._client_nonce = b""
        self._nonce = b""
        self.passed = False

    def process(self, payload: bytes) -> bytes:
        """Raises LedgerUnauthorizedError."""
        if not self._nonce:
            if len(payload) != _NONCE_BYTES:
                raise LedgerUnauthorizedError("not a nonce")
            self._client_nonce = payload
            self._nonce = secrets.token_bytes(_NONCE_BYTES)
            return self._nonce
        expected, self._nonce = _proof(self._secret, self._client_nonce, self._nonce), b""
        if not hmac.compare_digest(payload, expected):
            raise LedgerUnauthorizedError("the client does not know the secret")
        self.passed = True
        return b""


class ClientSecret:
    """What a client shows its bookies. Implements `ClientAuth`."""

    __slots__ = ("_secret",)
    plugin_name: Final = PLUGIN_NAME

    def __init__(self, secret: bytes) -> None:
        """Raises ConfigError for a secret that is too short."""
        self._secret = _checked(secret)

    def new_session(self) -> ClientSecretSession:
        return ClientSecretSession(self._secret)


class ClientSecretSession:
    """One connection. Implements `ClientAuthSession`."""

    __slots__ = ("_nonce", "_proved", "_secret")

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._proved = False

    def start(self) -> bytes:
        return self._nonce

    def process(self, payload: bytes) -> bytes | None:
        """Raises LedgerUnauthorizedError."""
        if self._proved:
            return None
        if len(payload) != _NONCE_BYTES:
            raise LedgerUnauthorizedError("the bookie does not speak this authentication")
        self._proved = True
        return _proof(self._secret, self._nonce, payload)
