"""Settings of the connections to bookies, and the hook for authentication. Names and values are those of BookKeeper's client."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Protocol

from magnetar.base.errors import ConfigError
from magnetar.wire.bookkeeper.frames import FRAME_BYTES_MAX


class ClientAuthSession(Protocol):
    """The conversation of one connection with its bookie."""

    def start(self) -> bytes:
        """The first message's payload."""
        ...

    def process(self, payload: bytes) -> bytes | None:
        """The answer to the bookie's payload; None ends the conversation with success. Raises a MagnetarError to give up."""
        ...


class ClientAuth(Protocol):
    """A way to authenticate. `plugin_name`: what the bookies call it."""

    @property
    def plugin_name(self) -> str: ...

    def new_session(self) -> ClientAuthSession: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelOptions:
    """`tls`: upgrade every connection by START_TLS before anything else is said."""

    add_timeout_s: float = 5.0
    read_timeout_s: float = 5.0
    connect_timeout_s: float = 10.0
    """For the connection, its TLS handshake and its authentication together."""
    retry_min_s: float = 0.1
    retry_max_s: float = 5.0
    """After a failed attempt requests fail at once for a while, which doubles from the one to the other."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    tls: ssl.SSLContext | None = None
    auth: ClientAuth | None = None

    def __post_init__(self) -> None:
        for name in ("add_timeout_s", "read_timeout_s", "connect_timeout_s", "retry_min_s", "retry_max_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"bookie channel setting {name} is {getattr(self, name)}; it must be greater than 0")
