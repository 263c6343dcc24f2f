"""Where a process listens, and what others are told: the part that every server's configuration has."""

from __future__ import annotations

import ipaddress

from magnetar.base.settings import Settings, setting

LOG_LEVELS = ("debug", "info", "warning", "error")


class ListenSettings(Settings):
    """A part of every process's configuration; the ports have names of their own in each."""

    bind_address: str = setting(
        "127.0.0.1",
        "bindAddress",
        "Address to listen on. Other machines are let in only with authentication, or with insecureListen.",
        differs="Other machines are let in once it is said who may (authenticationEnabled), or that all may (insecureListen).",
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


class HttpListenSettings(ListenSettings):
    """A part of the configuration of every process that has an HTTP port."""

    web_service_allowed_hosts: str = setting(
        "",
        "webServiceAllowedHosts",
        "Names under which HTTP clients reach this server, comma-separated: NAME, .DOMAIN, or * for any. Addresses, localhost, the machine "
        "name and advertisedAddress are known anyway. Asked where nobody shows a credential: keeps pages in browsers out (DNS rebinding).",
    )

    @property
    def http_names(self) -> tuple[str, ...]:
        """What this server is called."""
        return self.advertised_host, self.bind_address, *self.web_service_allowed_hosts.split(",")


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach a listener on `address`."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
