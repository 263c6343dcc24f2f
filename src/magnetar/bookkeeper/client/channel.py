"""A bookie on another machine as a `BookieChannel`: version 2 of BookKeeper's protocol over one TCP connection.

The connection is made with the first request. While the bookie cannot be reached requests fail at once; what was under way when the
connection broke is answered with BOOKIE_UNAVAILABLE, what is not answered in time with BOOKIE_TIMEOUT. Neither says anything about
entries.
"""

from __future__ import annotations

import random

from magnetar.base.clock import Clock
from magnetar.base.network import Network
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.client.channel_lane import Environment
from magnetar.bookkeeper.client.channel_options import ChannelOptions
from magnetar.bookkeeper.client.channel_v2 import V2Requests
from magnetar.bookkeeper.codes import LAST_ENTRY, ReturnCode
from magnetar.bookkeeper.ports import AddDone, LacDone


class RemoteBookie:
    """`address`: host and port. `scope` runs the connection attempts: `close` before it ends. Implements `BookieChannel`."""

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
        self._v2 = V2Requests(address, environment)
        self.add_entry = self._v2.add_entry
        self.read_entry = self._v2.read_entry
        self.read_batch = self._v2.read_batch

    @property
    def connected(self) -> bool:
        """There is a connection that has passed its handshake."""
        return self._v2.lane.connected

    @property
    def pending_count(self) -> int:
        """Requests whose `done` has not been called."""
        return self._v2.pending_count

    def write_lac(self, ledger_id: int, body: bytes, master_key: bytes, done: AddDone) -> None:
        """Version 2 has no such request."""
        done(int(ReturnCode.BAD_REQUEST))

    def read_lac(self, ledger_id: int, done: LacDone) -> None:
        """Version 2 knows no explicit LAC: the last entry alone."""
        self.read_entry(ledger_id, LAST_ENTRY, 0, b"", lambda code, entry: done(code, None, entry))

    def announce(self) -> None:
        """The bookie has just registered itself: connect with the next request, whatever failed before."""
        self._v2.lane.forget_failures()

    def close(self) -> None:
        """Answer what is under way with BOOKIE_UNAVAILABLE, as everything from now on."""
        self._v2.lane.close()
