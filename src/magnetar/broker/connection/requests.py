"""Control requests: whose turn it is, and how many answers may wait for clients that do not read.

Requests wait at their connection until it is their turn. Turns go round the principals (the authenticated role; without one the
address), and for each principal round its connections, so that a client waits for the others' next request, not for all of theirs.
What a request costs is charged before it is made: a place among those under way, and room for its answer. A connection whose
answers are not read, and a principal whose connections together hold too many, get no further turn until some were read.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from magnetar.base import limits
from magnetar.base.clock import Clock
from magnetar.base.errors import MagnetarError
from magnetar.base.tasks import REPORTED, TaskScope

logger = logging.getLogger(__name__)

Work = Coroutine[Any, Any, None]


class _Request:
    """One that waits or is under way. `counted`: it has a place among its principal's, and among all."""

    __slots__ = ("answer_bytes", "counted", "name", "share", "started_s", "work")

    def __init__(self, work: tuple[Work, ...], name: str, answer_bytes: int) -> None:
        self.work = work
        self.name = name
        self.answer_bytes = answer_bytes
        self.counted = False
        self.share: Share | None = None
        """Whose place it has, from its start on: CONNECT makes its connection another principal's."""
        self.started_s = 0.0


class Share:
    """The share of one principal: what its connections use together."""

    __slots__ = ("busy", "connections", "in_rotation", "key", "queue", "running", "unread_bytes")

    def __init__(self, key: str) -> None:
        self.key = key
        self.connections = 0
        self.busy = 0
        """Connections that ended their last turn with frames left over."""
        self.in_rotation = False
        self.queue: deque[ControlRequests] = deque()
        """Connections with a request that may start, in the order of their turns."""
        self.running: dict[_Request, None] = {}
        """Counted ones, oldest first."""
        self.unread_bytes = 0
        """Answers that wait in sockets, as far as they are counted, and room kept for those that are being made."""


class RequestTurns:
    """One per broker. Everything here runs on its event loop, and nothing is awaited but the requests themselves."""

    def __init__(self, scope: TaskScope, clock: Clock) -> None:
        self._scope = scope
        self._now_s = clock.monotonic_s
        self._shares: dict[str, Share] = {}
        self._rotation: deque[Share] = deque()
        self._running = 0
        self.unread_bytes = 0
        """Unread bytes of all principals together, as `Share.unread_bytes`."""
        self._holders: dict[ControlRequests, None] = {}
        """Connections that hold answers which are counted, or wait for room."""
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None

    # ---- Principals

    def enter(self, key: str) -> Share:
        """The share of a principal, for one more connection."""
        share = self._shares.get(key)
        if share is None:
            share = self._shares[key] = Share(key)
        share.connections += 1
        return share

    def leave(self, share: Share) -> None:
        """One connection less. What it still has under way counts on, whoever connects next."""
        share.connections -= 1
        self._forget_unused(share)

    def _forget_unused(self, share: Share) -> None:
        if not share.connections and not share.running:
            self._shares.pop(share.key, None)

    @property
    def idle(self) -> bool:
        """True if nothing is under way that counts, and nothing may start."""
        return not self._running and not self._rotation

    def validate(self) -> None:
        """The sums are those of their parts."""
        shares = list(self._shares.values())
        assert self._running == sum(len(share.running) for share in shares)
        assert self._running <= limits.REQUESTS_UNDER_WAY_MAX
        assert self.unread_bytes >= sum(share.unread_bytes for share in shares) >= 0
        for share in shares:
            assert len(share.running) <= limits.REQUESTS_UNDER_WAY_PER_PRINCIPAL_MAX
            assert share.busy <= share.connections
            assert all(connection.waiting and not connection.blocked for connection in share.queue)

    # ---- Turns

    def offer(self, connection: ControlRequests) -> None:
        """The connection has a request that waits, and is in no queue."""
        connection.share.queue.append(connection)
        self._rotate(connection.share)
        self._schedule()

    def _rotate(self, share: Share) -> None:
        """Among those that get turns, while it has something to start and may."""
        wanted = bool(share.queue) and len(share.running) < limits.REQUESTS_UNDER_WAY_PER_PRINCIPAL_MAX
        if wanted and not share.in_rotation:
            share.in_rotation = True
            self._rotation.append(share)

    def _schedule(self) -> None:
        if self._rotation and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Start some, then let the loop serve everybody else."""
        self._scheduled = False
        rotation = self._rotation
        looked_at = started = 0
        while (
            rotation and started < limits.REQUESTS_STARTED_PER_TURN and looked_at < limits.REQUESTS_LOOKED_AT_PER_TURN
        ):
            if self._running >= limits.REQUESTS_UNDER_WAY_MAX:
                self._watch()
                return
            looked_at += 1
            share = rotation.popleft()
            share.in_rotation = False
            if not share.queue:
                continue
            connection = share.queue.popleft()
            if self._has_room(share, connection):
                self._start(share, connection)
                started += 1
                if connection.waiting:
                    share.queue.append(connection)
                else:
                    connection.queued = False
            else:
                connection.blocked = True
                self._holders[connection] = None
                self._watch()
            self._rotate(share)
            if share.queue and not share.in_rotation:
                self._watch()  # it comes back with the first of its requests that ends, or takes long
        self._schedule()

    def _has_room(self, share: Share, connection: ControlRequests) -> bool:
        """True if an answer may be made: its connection is read, and its principal leaves as much free as it holds itself."""
        if connection.unread_bytes() + connection.reserved_bytes >= limits.CONNECTION_OUTPUT_HIGH_BYTES:
            return False
        free = limits.UNREAD_ANSWERS_BYTES_MAX - self.unread_bytes
        wanted = share.unread_bytes + connection.waiting[0].answer_bytes
        return wanted <= max(free, limits.UNREAD_ANSWERS_PER_PRINCIPAL_BYTES_MIN)

    def _start(self, share: Share, connection: ControlRequests) -> None:
        request = connection.waiting.popleft()
        request.counted = True
        request.share = share
        request.started_s = self._now_s()
        share.running[request] = None
        self._running += 1
        connection.reserved_bytes += request.answer_bytes
        self._charge(share, request.answer_bytes)
        self._scope.spawn(connection.run(request), request.name, REPORTED)

    def ended(self, connection: ControlRequests, request: _Request) -> None:
        """Its answer, if there is one, is in the connection's output now."""
        assert request.share is not None, "what has not started does not end"
        connection.reserved_bytes -= request.answer_bytes
        self._charge(request.share, -request.answer_bytes)
        self.release(request.share, request)

    def release(self, share: Share, request: _Request) -> None:
        """Give its place to the next one."""
        if not request.counted:
            return
        request.counted = False
        del share.running[request]
        self._running -= 1
        self._forget_unused(share)
        self._rotate(share)
        self._schedule()

    # ---- Answers that are not read

    def _charge(self, share: Share, change_bytes: int) -> None:
        share.unread_bytes += change_bytes
        self.unread_bytes += change_bytes

    def hold(self, connection: ControlRequests, unread_bytes: int) -> bool:
        """So many bytes of its answers wait in its socket. False: it must be closed, since all connections together hold too much,
        and this one more than the average of them."""
        self._charge(connection.share, unread_bytes - connection.held_bytes)
        connection.held_bytes = unread_bytes
        if unread_bytes:
            self._holders[connection] = None
            self._watch()
        return (
            self.unread_bytes <= 2 * limits.UNREAD_ANSWERS_BYTES_MAX
            or unread_bytes * len(self._holders) <= self.unread_bytes
        )

    def withdraw(self, connection: ControlRequests) -> None:
        """Its requests want no turn any more."""
        if connection.queued and not connection.blocked:
            connection.share.queue.remove(connection)
        connection.queued = connection.blocked = False

    def forget(self, connection: ControlRequests) -> None:
        """The socket is gone, and what waited in it."""
        self._charge(connection.share, -connection.held_bytes)
        connection.held_bytes = 0
        self._holders.pop(connection, None)
        self.leave(connection.share)

    def unblock(self, connection: ControlRequests) -> None:
        """Its answers have been read, or some of its principal's."""
        if connection.blocked:
            connection.blocked = False
            self.offer(connection)

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(limits.REQUESTS_LOOK_AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        """While something waits: whose answers were read meanwhile, and which requests take so long that they wait for something
        other than the loop. Some connections at a time."""
        self._timer = None
        for connection in list(self._holders)[: limits.REQUESTS_LOOKED_AT_PER_TURN]:
            del self._holders[connection]
            unread_bytes = connection.unread_bytes()
            self._charge(connection.share, unread_bytes - connection.held_bytes)
            connection.held_bytes = unread_bytes
            if connection.blocked and self._has_room(connection.share, connection):
                self.unblock(connection)
            if unread_bytes or connection.blocked:
                self._holders[connection] = None  # behind the others
        before_s = self._now_s() - limits.REQUEST_HOLDS_PLACE_S
        all_taken = self._running >= limits.REQUESTS_UNDER_WAY_MAX
        stuck = [share for share in self._shares.values() if share.running and (share.queue or all_taken)]
        for share in stuck:
            for request in [each for each in share.running if each.started_s <= before_s]:
                self.release(share, request)
        if self._holders or stuck:
            self._watch()


def _nothing() -> None:
    """For a connection that is gone."""


class ControlRequests:
    """Those of one connection. `unread_bytes`: answers that wait in its socket. Calls `on_many` when as many wait or are under way as one
    connection may have, `on_few` when half of them have ended."""

    __slots__ = (
        "_address",
        "_collected",
        "_on_few",
        "_on_many",
        "_turns",
        "blocked",
        "busy",
        "count",
        "held_bytes",
        "queued",
        "reserved_bytes",
        "share",
        "unread_bytes",
        "waiting",
    )

    def __init__(
        self,
        turns: RequestTurns,
        address: str,
        unread_bytes: Callable[[], int],
        on_many: Callable[[], None],
        on_few: Callable[[], None],
    ) -> None:
        self._turns = turns
        self._address = address
        self._on_few = on_few
        self._on_many = on_many
        self._collected: list[Work] | None = None
        self.unread_bytes = unread_bytes
        self.share = turns.enter(address.rpartition(":")[0])
        self.waiting: deque[_Request] = deque()
        self.busy = False
        self.count = 0
        """Those that wait and those under way."""
        self.queued = self.blocked = False
        """Queued: among those of its principal that wait for a turn, or blocked: for its answers to be read."""
        self.reserved_bytes = 0
        self.held_bytes = 0

    def belong_to(self, key: str) -> None:
        """Charge this connection's requests to this principal from now on. Called while none waits."""
        assert not self.queued, "what waits is in the queue of the principal before"
        was_busy = self.busy
        self.set_busy(False)
        self._turns.leave(self.share)
        self.share = self._turns.enter(key)
        self.set_busy(was_busy)

    def set_busy(self, busy: bool) -> None:
        """True if the connection ended its turn with frames left over: the busy ones of a principal share one turn."""
        if busy is not self.busy:
            self.busy = busy
            self.share.busy += 1 if busy else -1

    def spawn(self, work: Work, name: str, answer_bytes: int, *inner: Work) -> None:
        """Run `work` when its turn comes; what it raises is logged with the client's address. `inner`: coroutines that it would await."""
        if self._collected is not None:
            self._collected.append(work)
            return
        self.count += 1
        if self.count >= limits.PENDING_REQUESTS_PER_CONNECTION_MAX:
            self._on_many()
        self.waiting.append(_Request((work, *inner), name, answer_bytes))
        if not self.queued:
            self.queued = True
            self._turns.offer(self)

    @contextmanager
    def collected(self) -> Iterator[list[Work]]:
        """Inside a request that is under way: what is spawned meanwhile belongs to it, and is the caller's to await."""
        found: list[Work] = []
        self._collected = found
        try:
            yield found
        finally:
            self._collected = None

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Around a wait that only the client can end: its further requests are read however many of these there are."""
        self._one_less()
        try:
            yield
        finally:
            self.count += 1

    async def run(self, request: _Request) -> None:
        try:
            await request.work[0]
        except MagnetarError as error:
            logger.warning("request failed address=%s error=%s", self._address, error)
        except Exception:
            logger.exception("request failed address=%s", self._address)
        finally:
            self._turns.ended(self, request)
            self._one_less()

    def close(self) -> None:
        """Nobody wants the answers any more: what waits is not run. What is under way goes on."""
        self.set_busy(False)
        self._turns.withdraw(self)
        while self.waiting:
            for work in self.waiting.popleft().work:
                work.close()

    def forget(self) -> None:
        """The socket is gone; until then its unread answers count. The connection is let go as well: in a circle with it, it would stay in
        memory until the oldest garbage is collected."""
        self._turns.forget(self)
        self.unread_bytes, self._on_many, self._on_few = int, _nothing, _nothing

    def answers_wait(self, unread_bytes: int) -> bool:
        """So much is in its socket. False: the connection must be closed."""
        return self._turns.hold(self, unread_bytes)

    def answers_were_read(self) -> None:
        """There is room in its socket again."""
        self._turns.unblock(self)

    def _one_less(self) -> None:
        self.count -= 1
        if self.count <= limits.PENDING_REQUESTS_PER_CONNECTION_MAX // 2:
            self._on_few()
