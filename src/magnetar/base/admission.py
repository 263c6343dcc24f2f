"""Which connections a process takes: one rule for all of its ports. Pure counting; `base/network` asks it at every accept.

Each kind of port (HTTP, and the protocol the process is for) has a share of the descriptors that storage does not need, plain and TLS
ports together, so that a flood at one kind leaves the other kind, the storage and the metadata alone. A connection counts from accept,
before any TLS handshake. Until its client has proved to be one (broker: CONNECT accepted; bookie: authenticated, or a first request
where nobody is asked; metadata server: a session opened by somebody who may; HTTP: a whole request received) it is a stranger: when a
share is full, or has as many strangers as it may have, a newcomer takes the place of the longest waiting stranger of the address that
has the most of them. It is refused only if the share is full and has no strangers.
"""

from __future__ import annotations

import ipaddress
import resource
from collections.abc import Callable

from magnetar.base.limits import HTTP_CONNECTIONS_PART, OPEN_FILES_RESERVED


def _gone() -> None:
    """Nobody is left to be evicted."""


class Ticket:
    """The place of one connection in its share. `evict` is called at most once, to close the connection for a newcomer."""

    __slots__ = ("_share", "address", "evict", "open", "settled")

    def __init__(self, share: Share, address: str, evict: Callable[[], object]) -> None:
        self._share = share
        self.address = address
        self.evict = evict
        self.open = True
        self.settled = False

    def settle(self) -> None:
        """The client is not a stranger: it keeps its place until it leaves."""
        if self.open and not self.settled:
            self.settled = True
            self._share.forget_stranger(self)

    def unsettle(self) -> None:
        """It does nothing at the moment: it may be evicted, after the strangers that wait for longer."""
        if self.open and self.settled:
            self.settled = False
            self._share.add_stranger(self)

    def leave(self) -> None:
        """The connection is closed. May be called again."""
        if self.open:
            self.open = False
            self._share.remove(self)
            self.evict = _gone  # the connection holds its ticket: in a circle it would stay in memory


class Share:
    """The connections of one kind of port.

    `total_max`, `per_address_max`, `strangers_max`: 0 for no limit. `settings`: what refusals for the first two name. Connections that
    became strangers again (`Ticket.unsettle`) count for `strangers_max`, and only newcomers are held to it.
    """

    __slots__ = (
        "_by_address",
        "_per_address_max",
        "_settings",
        "_strangers",
        "_strangers_max",
        "_total_max",
        "evicted_address",
        "evicted_total",
        "name",
        "refused_total",
        "strangers_count",
        "total",
    )

    def __init__(
        self,
        name: str,
        total_max: int,
        per_address_max: int,
        settings: tuple[str, str] = ("the total", "the address"),
        *,
        strangers_max: int = 0,
    ) -> None:
        self.name = name
        self._total_max = total_max
        self._per_address_max = per_address_max
        self._settings = settings
        self._strangers_max = strangers_max
        self.total = 0
        self.strangers_count = 0
        self._by_address: dict[str, int] = {}
        self._strangers: dict[str, dict[Ticket, None]] = {}
        """By address, the longest waiting first."""
        self.refused_total = 0
        self.evicted_total = 0
        self.evicted_address = ""
        """Of the last one that was evicted."""

    def enter(self, host: str, evict: Callable[[], object]) -> Ticket | str:
        """A ticket, which counts until it leaves, or why there is none."""
        address = address_of(host)
        held = self._by_address.get(address, 0)
        refusal = ""
        if self._per_address_max and held >= self._per_address_max:
            if not self._evict_from(address):
                refusal = f"{held} connections of {address} are open, {self._settings[1]} allows no more"
        elif self._total_max and self.total >= self._total_max:
            if not self._evict_from(self._address_of_most_strangers()):
                refusal = (
                    f"{self.total} connections are open, {self._settings[0]} or the limit of open files allows no more"
                )
        elif self._strangers_max and self.strangers_count >= self._strangers_max:
            self._evict_from(self._address_of_most_strangers())
        if refusal:
            self.refused_total += 1
            return refusal
        ticket = Ticket(self, address, evict)
        self.total += 1
        self._by_address[address] = self._by_address.get(address, 0) + 1
        self.add_stranger(ticket)
        return ticket

    def _address_of_most_strangers(self) -> str:
        return max(self._strangers, key=lambda each: len(self._strangers[each]), default="")

    def _evict_from(self, address: str) -> bool:
        strangers = self._strangers.get(address)
        if not strangers:
            return False
        ticket = next(iter(strangers))
        self.evicted_total += 1
        self.evicted_address = address
        evict = ticket.evict
        ticket.leave()
        evict()
        return True

    def add_stranger(self, ticket: Ticket) -> None:
        self._strangers.setdefault(ticket.address, {})[ticket] = None
        self.strangers_count += 1

    def forget_stranger(self, ticket: Ticket) -> None:
        strangers = self._strangers[ticket.address]
        del strangers[ticket]
        self.strangers_count -= 1
        if not strangers:
            del self._strangers[ticket.address]

    def remove(self, ticket: Ticket) -> None:
        if not ticket.settled:
            self.forget_stranger(ticket)
        self.total -= 1
        held = self._by_address[ticket.address] - 1
        if held:
            self._by_address[ticket.address] = held
        else:
            del self._by_address[ticket.address]

    def validate(self) -> None:
        assert self.total == sum(self._by_address.values())
        assert all(self._by_address.values())
        assert self.strangers_count == sum(map(len, self._strangers.values()))
        for address, strangers in self._strangers.items():
            assert 0 < len(strangers) <= self._by_address[address]
            assert all(ticket.open and not ticket.settled for ticket in strangers)


def address_of(host: str) -> str:
    """What counts as one address: an IPv6 host owns its whole /64, and IPv4 inside IPv6 is IPv4."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return host if address.is_loopback else str(ipaddress.IPv6Network((address, 64), strict=False))


class Admission:
    """The shares of a process. What is not the HTTP ports' belongs to `protocol`, the ports the process is for."""

    def __init__(
        self,
        *,
        protocol_max: int = 0,
        http_max: int = 0,
        per_address_max: int = 0,
        strangers_max: int = 0,
        open_files_max: int | None = None,
        settings: tuple[str, str, str] = ("the limit of connections", "the limit of HTTP connections", "the limit"),
    ) -> None:
        """0 for no limit but that of open files; `open_files_max` is what the system allows this process by default.

        `strangers_max` is of the `protocol` share. `settings` are the names of the first three limits, as the operator knows them.
        """
        if open_files_max is None:
            open_files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if open_files_max != resource.RLIM_INFINITY:
            possible = max(open_files_max - OPEN_FILES_RESERVED, open_files_max // 2)
            http_max = _least(http_max, possible // HTTP_CONNECTIONS_PART)
            protocol_max = _least(protocol_max, possible - http_max)
        self.protocol = Share(
            "binary", protocol_max, per_address_max, (settings[0], settings[2]), strangers_max=strangers_max
        )
        self.http = Share("http", http_max, per_address_max, (settings[1], settings[2]))
        self.protocol_max, self.http_max = protocol_max, http_max

    @property
    def shares(self) -> tuple[Share, Share]:
        return self.protocol, self.http


def _least(configured: int, possible: int) -> int:
    return min(configured, possible) if configured else possible
