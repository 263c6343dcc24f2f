"""Finds out whether a registered broker still runs: a process that was killed or stopped keeps its nodes until its session ends.

Two findings count against a broker: its address refuses the connection (nobody listens), or the connection is accepted and then
nothing answers a PING (the kernel accepts for a process that is stopped or hangs). A broker that cannot be connected to otherwise is
taken to be there: clients may reach it on another way.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final, cast
from urllib.parse import urlsplit

from magnetar.base.clock import Clock
from magnetar.base.network import Network
from magnetar.broker.namespaces.records import BrokerAddress
from magnetar.wire.pulsar import commands

FRESH_S: Final = 0.1
"""A finding counts for this long."""

CONNECT_TIMEOUT_S: Final = 0.5
"""Longer than this nobody waits for a connection to a broker; it is then taken to be there."""

ANSWER_TIMEOUT_S: Final = 2.0
"""A broker that has accepted the connection and does not answer by then is taken to hang. Clients would wait for it for 10 s or more."""

BROKERS_MAX: Final = 10_000
"""Above it the oldest findings are forgotten."""


class Reachability:
    """Connects and asks for a sign of life."""

    def __init__(self, network: Network, clock: Clock) -> None:
        self._network = network
        self._clock = clock
        self._known: dict[tuple[str, int], tuple[bool, float]] = {}
        self._probes: dict[tuple[str, int], asyncio.Future[bool]] = {}

    async def away(self, address: BrokerAddress) -> bool:
        """True when nobody listens where the broker says that it does, or who listens does not answer."""
        url = urlsplit(address.service_url or address.service_url_tls)
        if url.hostname is None or url.port is None:
            return False
        place = url.hostname, url.port
        away, until_s = self._known.get(place, (False, 0.0))
        if self._clock.monotonic_s() < until_s:
            return away
        probe = self._probes.get(place)
        if probe is not None:  # many lookups wait for one probe
            return await asyncio.shield(probe)
        probe = self._probes[place] = asyncio.get_running_loop().create_future()
        away = False
        try:
            away = await self._try(*place, tls=not address.service_url)
        finally:
            del self._probes[place]
            probe.set_result(away)
        self._known[place] = away, self._clock.monotonic_s() + FRESH_S
        if len(self._known) > BROKERS_MAX:
            del self._known[next(iter(self._known))]
        return away

    async def _try(self, host: str, port: int, *, tls: bool) -> bool:
        try:
            # With TLS a process that hangs is silent in the handshake already, which counts as one that cannot be reached.
            context = _any_certificate() if tls else None
            connected = await self._network.connect(host, port, _Probe, context, timeout_s=CONNECT_TIMEOUT_S)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        assert isinstance(connected, _Probe)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await connected.answered
        except TimeoutError:
            return True
        finally:
            connected.hang_up()
        return False


class _Probe(asyncio.Protocol):
    """Sends PING, which every broker answers without authentication; any byte, and the end of the connection, is a sign of life."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not derive from it
        self._transport.write(commands.ping())

    def data_received(self, data: bytes) -> None:
        self._answer()

    def connection_lost(self, error: Exception | None) -> None:
        self._answer()

    def _answer(self) -> None:
        if not self.answered.done():
            self.answered.set_result(None)

    def hang_up(self) -> None:
        self._transport.close()


def _any_certificate() -> ssl.SSLContext:
    """Nothing is told to the other side and nothing it says is believed, so its certificate does not matter."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
