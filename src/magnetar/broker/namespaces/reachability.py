"""Is a broker that is still registered there at all? A process that was killed keeps its nodes until its session ends.

Only a refused connection says that nobody listens. Whoever does not answer may be reached by clients on another way.
"""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import urlsplit

from magnetar.base.clock import Clock
from magnetar.base.network import Network
from magnetar.broker.namespaces.records import BrokerAddress

FRESH_S: Final = 0.1
"""An answer counts for this long."""

PROBE_TIMEOUT_S: Final = 0.5
"""Longer than this nobody waits to hear whether a broker listens; it is then taken to be there."""

BROKERS_MAX: Final = 10_000
"""Above it the oldest answers are forgotten."""


class Reachability:
    """Tries to connect."""

    def __init__(self, network: Network, clock: Clock) -> None:
        self._network = network
        self._clock = clock
        self._known: dict[tuple[str, int], tuple[bool, float]] = {}

    async def refused(self, address: BrokerAddress) -> bool:
        """True when nobody listens where the broker says that it does."""
        url = urlsplit(address.service_url or address.service_url_tls)
        if url.hostname is None or url.port is None:
            return False
        place = url.hostname, url.port
        refused, until_s = self._known.get(place, (False, 0.0))
        if self._clock.monotonic_s() < until_s:
            return refused
        refused = await self._try(*place)
        self._known[place] = refused, self._clock.monotonic_s() + FRESH_S
        if len(self._known) > BROKERS_MAX:
            del self._known[next(iter(self._known))]
        return refused

    async def _try(self, host: str, port: int) -> bool:
        try:
            connected = await self._network.connect(host, port, _HangUp, timeout_s=PROBE_TIMEOUT_S)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        assert isinstance(connected, _HangUp)
        connected.hang_up()
        return False


class _HangUp(asyncio.Protocol):
    """A connection of which nothing is wanted."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def hang_up(self) -> None:
        self._transport.close()
