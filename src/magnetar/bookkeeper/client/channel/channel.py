"""A bookie on another machine as a `BookieService`: BookKeeper's protocol over TCP.

Adds and reads are of version 2; what that has no form for is of version 3, on a second connection that is made when it is needed. A
connection is made with its first request. While the bookie cannot be reached requests fail at once; what was under way when a connection
broke is answered with BOOKIE_UNAVAILABLE, what is not answered in time with BOOKIE_TIMEOUT. Neither says anything about entries.
"""

from __future__ import annotations

import random

from magnetar.base.clock import Clock
from magnetar.base.network import Network
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.client.channel.lane import Environment
from magnetar.bookkeeper.client.channel.options import ChannelOptions
from magnetar.bookkeeper.client.channel.v2 import V2Requests
from magnetar.bookkeeper.client.channel.v3 import V3Requests


class RemoteBookie:
    """`address`: host and port. `scope` runs the connection attempts: `close` before it ends. Implements `BookieService`."""

    def __init__(
        self,
        address: tuple[str, int],
        network: Network,
        clock: Clock,
        rng: random.Random,
        scope: TaskScope,
        options: ChannelOptions | None = None,
    ) -> None:
        environment = Environment(network, clock, rng, scope, options or ChannelOptions())
        self.address = address
        packed = self._v2 = V2Requests(address, environment)
        self.add_entry = packed.add_entry
        self.add_run = packed.add_run
        self.read_entry = packed.read_entry
        self.read_batch = packed.read_batch
        others = self._v3 = V3Requests(address, environment)
        self.write_lac = others.write_lac
        self.read_lac = others.read_lac
        self.last_confirmed = others.last_confirmed
        self.wait_lac = others.wait_lac
        self.force_ledger = others.force_ledger
        self.bookie_info = others.bookie_info
        self.list_entries = others.list_entries

    @property
    def connected(self) -> bool:
        """The connection for adds and reads is there and has passed its handshake."""
        return self._v2.lane.connected

    @property
    def pending_count(self) -> int:
        """Requests whose `done` has not been called."""
        return self._v2.pending_count + self._v3.pending_count

    @property
    def requests_total(self) -> int:
        """Adds and reads so far."""
        return self._v2.requests_total

    @property
    def refused_total(self) -> int:
        """Adds and reads that were not sent: the bookie cannot be reached, or too many are under way."""
        return self._v2.refused_total

    @property
    def timeouts_total(self) -> int:
        """Requests that were not answered in time."""
        return self._v2.timeouts_total + self._v3.timeouts_total

    @property
    def connections_total(self) -> int:
        """Connections made so far."""
        return self._v2.lane.connections_total + self._v3.lane.connections_total

    def announce(self) -> None:
        """The bookie has just registered itself: connect with the next request, whatever failed before."""
        self._v2.lane.forget_failures()
        self._v3.lane.forget_failures()

    def retire(self) -> None:
        """The bookie's registration is gone: use the connections that there are, make no others until it is announced."""
        self._v2.lane.retired = self._v3.lane.retired = True

    def close(self) -> None:
        """Answer what is under way with BOOKIE_UNAVAILABLE, as everything from now on."""
        self._v2.lane.close()
        self._v3.lane.close()
