"""A connection to a bookie that is made when first needed and, after it was lost, made again with growing pauses.

One timer per lane looks after all requests that are under way; it rests while there are none.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from magnetar.base.clock import Clock
from magnetar.base.errors import MagnetarError
from magnetar.base.network import Network
from magnetar.base.tasks import REPORTED, TaskScope
from magnetar.bookkeeper.client.channel.connection import BookieConnection, Take
from magnetar.bookkeeper.client.channel.options import ChannelOptions

_logger = logging.getLogger(__name__)

_SWEEPS_PER_TIMEOUT: Final = 5

Handshake = Callable[[BookieConnection, str, ChannelOptions], Awaitable[None]]
"""`await handshake(connection, host, options)`: what to say before the first request. Raises MagnetarError, OSError."""


class LaneUser(Protocol):
    """Whose requests travel on the lane."""

    def receive(self, frames: list[bytes]) -> None:
        """Answers, in the order in which they arrived. Raises BookieFrameError for what is none."""
        ...

    def lost(self) -> None:
        """Nothing that is under way will be answered any more. Called when the lane is down already."""
        ...

    def sweep(self, ticks: int) -> bool:
        """Give up what is too old at this time, counted in sweeps. True: there was such a request."""
        ...

    @property
    def busy(self) -> bool:
        """There are requests under way."""
        ...


class Environment:
    """What a channel needs from outside; shared by all channels of a client."""

    __slots__ = ("clock", "network", "options", "rng", "scope")

    def __init__(
        self, network: Network, clock: Clock, rng: random.Random, scope: TaskScope, options: ChannelOptions
    ) -> None:
        self.network = network
        self.clock = clock
        self.rng = rng
        self.scope = scope
        self.options = options


class Lane:
    """`if lane.up or lane.connect(): lane.write(...)`. `ticks`: sweeps so far, the age of requests is counted in them."""

    __slots__ = (
        "_address",
        "_connection",
        "_environment",
        "_failures",
        "_handshake",
        "_held",
        "_loop",
        "_retry_at_s",
        "_silent_ticks",
        "_sweeping",
        "_take",
        "_task",
        "_timer",
        "_user",
        "closed",
        "connections_total",
        "retired",
        "ticks",
        "up",
    )

    def __init__(
        self,
        address: tuple[str, int],
        environment: Environment,
        handshake: Handshake,
        user: LaneUser,
        take: Take | None = None,
    ) -> None:
        """`take` looks at what arrives before it is cut into frames: see `FrameCutter.feed`."""
        self._address = address
        self._environment = environment
        self._handshake = handshake
        self._user = user
        self._take = take
        self._connection: BookieConnection | None = None
        self._held: list[bytes] = []
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._sweeping = False
        self._silent_ticks = 0
        self._failures = 0
        self._retry_at_s = 0.0
        self.ticks = 0
        self.connections_total = 0
        self.closed = False
        self.retired = False
        """The connection that there is may be used; no other is made."""
        self.up = False
        """There is a connection, or one is being made: what is written will be sent."""

    @property
    def connected(self) -> bool:
        """Requests reach the bookie without waiting for a handshake."""
        return self._connection is not None

    @property
    def sweep_interval_s(self) -> float:
        options = self._environment.options
        return min(options.add_timeout_s, options.read_timeout_s) / _SWEEPS_PER_TIMEOUT

    def ticks_for(self, timeout_s: float) -> int:
        """Sweeps after which a request has been under way for at least `timeout_s`, and at most one sweep more."""
        return max(1, round(timeout_s / self.sweep_interval_s))

    # ---- Requests

    def write(self, first: bytes, second: bytes = b"") -> None:
        """Send a frame, now or when the connection is made. Only while `up`."""
        connection = self._connection
        if connection is not None:
            connection.write(first, second)
        else:
            self._held += (first, second)
        if not self._sweeping:
            self._sweeping = True
            self._timer = self._loop.call_later(self.sweep_interval_s, self._sweep)

    def write_pieces(self, pieces: list[bytes]) -> None:
        """The same for many frames, each in two pieces."""
        connection = self._connection
        if connection is not None:
            connection.write_pieces(pieces)
        else:
            self._held += pieces
        if not self._sweeping:
            self._sweeping = True
            self._timer = self._loop.call_later(self.sweep_interval_s, self._sweep)

    def connect(self) -> bool:
        """Begin to connect. False: closed, or the last attempt failed so recently that another one makes no sense."""
        environment = self._environment
        if self.closed or self.retired or environment.clock.monotonic_s() < self._retry_at_s:
            return False
        self._loop = asyncio.get_running_loop()
        work = self._connect()
        try:
            task = environment.scope.spawn(work, "connect to bookie", REPORTED)
        except RuntimeError:  # the client is being stopped
            return False
        self._task = task
        self.up = True
        task.add_done_callback(self._connect_ended)
        return True

    def forget_failures(self) -> None:
        """Somebody knows that the bookie is there: the next request may connect at once."""
        self.retired = False
        self._failures = 0
        self._retry_at_s = 0.0

    def drop(self, error: Exception) -> None:
        """Give the connection up; the next request makes another one."""
        connection = self._connection
        if connection is not None:
            connection.abort(error)
            self._lost(connection, error)

    def close(self) -> None:
        """For good. What is under way is answered as lost."""
        self.closed = True
        if self._task is not None:
            self._task.cancel()
        connection = self._connection
        self._down()
        if connection is not None:
            connection.abort()

    # ---- Connecting

    async def _connect(self) -> None:
        options, (host, port) = self._environment.options, self._address
        connection = BookieConnection(options.frame_bytes_max, self._user.receive, self._lost, self._take)
        try:
            async with asyncio.timeout(options.connect_timeout_s):
                await self._environment.network.connect(
                    host, port, lambda: connection, timeout_s=options.connect_timeout_s
                )
                await self._handshake(connection, host, options)
        except (OSError, TimeoutError, MagnetarError) as error:
            connection.abort()
            self._attempt_failed(error)
            return
        except BaseException:  # cancelled
            connection.abort()
            raise
        self._opened(connection)

    def _opened(self, connection: BookieConnection) -> None:
        if connection.closed or self.closed:
            self._attempt_failed(ConnectionResetError("the bookie closed the connection"))
            return
        self._silent_ticks = 0
        self.connections_total += 1
        self._connection = connection
        held, self._held = self._held, []
        for piece in held:
            if piece:
                connection.write(piece)
        connection.open()
        _logger.info("connected to bookie %s:%d", *self._address)

    def _attempt_failed(self, error: BaseException) -> None:
        if not self._failures and not self.closed:
            _logger.warning("bookie %s:%d cannot be reached: %s", *self._address, error or type(error).__name__)
        self._pause()
        self._down()

    def _connect_ended(self, task: asyncio.Task[None]) -> None:
        if self._task is task:
            self._task = None
            if self.up and self._connection is None:  # cancelled, perhaps before it began
                self._pause()
                self._down()

    def _pause(self) -> None:
        options = self._environment.options
        pause_s = min(options.retry_max_s, options.retry_min_s * 2**self._failures)
        self._failures = min(self._failures + 1, 30)
        self._retry_at_s = self._environment.clock.monotonic_s() + pause_s * self._environment.rng.uniform(0.5, 1.0)

    def _lost(self, connection: BookieConnection, error: Exception | None) -> None:
        if self._connection is not connection:
            return  # during the handshake, whose end tells; or it was given up before
        if connection.served:
            self._failures = 0
        if error is None and not self._user.busy and not self.closed:
            self._down()  # the bookie closed what was not needed for long: the next request connects at once
            return
        if not self.closed:
            _logger.warning("connection to bookie %s:%d lost: %s", *self._address, error or "closed by the bookie")
        self._pause()
        self._down()

    def _down(self) -> None:
        self._connection = None
        self.up = False
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._sweeping = False
        self._user.lost()

    # ---- Timeouts

    def _sweep(self) -> None:
        """A stalled event loop sweeps late, not often: nobody is given up for a time in which nobody looked."""
        self.ticks += 1
        connection = self._connection
        if connection is not None and connection.heard:
            connection.heard = False
            self._silent_ticks = 0
        else:
            self._silent_ticks += 1
        gave_up = self._user.sweep(self.ticks)
        if gave_up and connection is not None and self._silent_ticks >= _SWEEPS_PER_TIMEOUT:
            self.drop(ConnectionResetError("the bookie is silent"))
        elif self._user.busy and self.up:
            self._timer = self._loop.call_later(self.sweep_interval_s, self._sweep)
        else:
            self._sweeping = False
