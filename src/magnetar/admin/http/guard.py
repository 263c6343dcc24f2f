"""What browsers are made to send by pages of other sites: refused before any route is looked for, on every HTTP port of every process.

Two ways lead from a page to a server on its reader's machine or network. A page may send requests to any address; the browser then says
whose page it is in `Origin`. And a page may come from a name whose address its owner changes to this server's (DNS rebinding); then
`Origin` is what is asked, and only the name in `Host` shows that nobody meant this server.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping
from typing import NamedTuple

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")

ANY_HOST = "*"
"""In webServiceAllowedHosts: whatever name a client uses."""

SHOWN_CHARS_MAX = 100
"""Characters of a foreign name that an answer repeats."""

FOREIGN_PAGE = "requests that change something are not taken from pages of other sites"


class Refusal(NamedTuple):
    status: int
    reason: str


class HttpGuard:
    """`names`: what this server is called besides `localhost`, the name of the machine and addresses.

    `.example.com` stands for all names below it.
    """

    def __init__(self, names: Iterable[str] = (), *, asks_for_names: bool = True) -> None:
        """`asks_for_names` False: any Host is taken, because a page that was led here has no credential to show."""
        known = {name.strip().lower().rstrip(".") for name in (*names, "localhost", socket.gethostname())}
        self._names = known - {""}
        self._suffixes = tuple(name for name in self._names if name.startswith("."))
        self._any = ANY_HOST in known
        self._asks = asks_for_names and ANY_HOST not in known

    def refusal(self, method: str, host: str | None, origin: str | None) -> Refusal | None:
        """Why a request with these headers is not for this server; None where it is.

        Clients of HTTP/1.0 may say no host; browsers always do.
        """
        if host is not None and self._asks and not self._is_own(host):
            return Refusal(
                421,
                f"Host {host[:SHOWN_CHARS_MAX]!r} is not a name of this server; use localhost, an IP address or its advertised "
                "address, or add the name to webServiceAllowedHosts",
            )
        if method in SAFE_METHODS or origin is None:
            return None
        if host is not None and origin.partition("://")[2].lower() == host.lower():
            return None
        return Refusal(403, FOREIGN_PAGE)

    def takes_origin(self, host: str, origin: str) -> bool:
        """Whether a page of this origin belongs to this server: it is the server's own, or on this machine, or at a name that is known.

        An address other than a loopback address may be anybody's.
        """
        authority = _authority(origin)
        name = host_name(authority)
        if not name:
            return False
        if self._any or authority == host.lower():
            return True
        if is_address(name):
            return ipaddress.ip_address(name).is_loopback
        return name in self._names or name.endswith(self._suffixes)

    def _is_own(self, host: str) -> bool:
        name = host_name(host)
        if not name:
            return False
        return is_address(name) or name in self._names or name.endswith(self._suffixes)


def is_of_foreign_page(headers: Mapping[str, str]) -> bool:
    """True for a GET that a page of another site may have caused, for routes whose GET has an effect (`Operation.effect`).

    Browsers leave `Origin` out of the GET of an image, a link or a form. `Sec-Fetch-Site` then tells whose page it was, but only over
    HTTPS and to loopback addresses; then `Referer`, unless the page asked the browser to hide it. A browser that says nothing at all
    counts as foreign. Clients that are not browsers send none of these.
    """
    host = headers.get("host", "").lower()
    if "origin" in headers:
        return not host or _authority(headers["origin"]) != host
    if "sec-fetch-site" in headers:
        return headers["sec-fetch-site"].strip().lower() not in ("same-origin", "none")
    if "referer" in headers:
        return not host or _authority(headers["referer"]) != host
    return headers.get("user-agent", "").startswith("Mozilla/")


def _authority(url: str) -> str:
    """Host and port, in lower case; empty for what has none."""
    return url.partition("://")[2].partition("/")[0].lower()


def host_name(host: str) -> str:
    """The name or address of `NAME`, `NAME:PORT`, `[ADDRESS]` and `[ADDRESS]:PORT`, in lower case; empty for anything else."""
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        if not bracket or (port and not port.startswith(":")) or not is_address(name) or ":" not in name:
            return ""
        port = port[1:]
    else:
        name, _, port = host.partition(":")
    if port and not (port.isascii() and port.isdigit()):
        return ""
    if any(not (each.isascii() and (each.isalnum() or each in "-._")) for each in name) and not is_address(name):
        return ""
    return name.lower().removesuffix(".")


def is_address(name: str) -> bool:
    """No page can be at an address and be led to another one: addresses are never somebody else's names."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
