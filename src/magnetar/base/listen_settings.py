"""Where a process listens, and what others are told: the part that every server's configuration has."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from magnetar.base.settings import setting

LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, kw_only=True)  # no slots: of several bases only one may have them
class ListenSettings:
    """A part of every process's configuration; the ports have names of their own in each."""

    bind_address: str = setting(
        "127.0.0.1",
        "bindAddress",
        "Address to listen on. Pulsar: 0.0.0.0. Other machines are let in only with authentication, or with insecureListen.",
    )
    advertised_address: str = setting(
        "", "advertisedAddress", "Host name that clients are told; empty: the bind address."
    )
    insecure_listen: bool = setting(
        False,
        "insecureListen",
        "Listen on an address that other machines reach although anybody there may then do anything.",
    )
    log_level: str = setting("info", "logLevel", "Least severe log line that is written to stderr.", choices=LOG_LEVELS)

    @property
    def advertised_host(self) -> str:
        """The host clients are told to connect to."""
        if self.advertised_address:
            return self.advertised_address
        return "127.0.0.1" if self.bind_address in ("0.0.0.0", "::", "") else self.bind_address


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach a listener on `address`."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
