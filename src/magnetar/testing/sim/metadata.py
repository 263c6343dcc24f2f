"""The metadata service of a simulation: one tree, a session for each process, calls that take time and may get lost on the way.

Like ZooKeeper: what a session asks is done in the order of asking, answers and notifications come in that order, a session whose client is
not heard of for its time-out expires. A call that fails with MetadataConnectionError may have been done or not.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from magnetar.metadata.errors import MetadataClosedError, MetadataConnectionError
from magnetar.metadata.lease import GIVE_UP_SHARE, Lease
from magnetar.metadata.listeners import Listeners
from magnetar.metadata.memory import MemoryMetadataStore, MemoryTree
from magnetar.metadata.store import RESYNC, Listener, Node, SessionEvent, SessionListener, Stat
from magnetar.testing.sim.loop import Process, SimClock
from magnetar.testing.sim.moments import Moments
from magnetar.testing.sim.wires import RETRANSMIT_S, Wires

T = TypeVar("T")

MACHINE: Final = "metadata"
"""The name under which cables to the service are cut."""

OnChange = Callable[[Process, str, str], None]
"""`on_change(process, operation, path)` after the service has done it."""


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits, as those of the memory store."""
    try:
        work.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    raise AssertionError("the memory store does not wait")


class MetadataService:
    """The tree and its sessions."""

    def __init__(self, wires: Wires, moments: Moments) -> None:
        self.wires = wires
        self.moments = moments
        self.tree = MemoryTree()
        self.delay_s = 0.0005
        self.on_change: OnChange | None = None
        self.calls_total = 0
        self.expired_total = 0
        self.owners: dict[int, Process] = {}
        """The process of each session."""
        self._heard_s: dict[int, float] = {}
        self._timeouts_s: dict[int, float] = {}
        wires.boot(MACHINE)
        self.eyes = MemoryMetadataStore(self.tree)
        """A session of nobody, for checkers: sees everything at once."""

    def begin(self, session_id: int, timeout_s: float) -> None:
        self._timeouts_s[session_id] = timeout_s
        self.heard(session_id)
        self.wires.loop.call_as(self.wires.loop.outside, timeout_s, self._look_after, session_id)

    def heard(self, session_id: int) -> None:
        """A sign of life."""
        self._heard_s[session_id] = self.wires.loop.now_s

    def expire(self, session_id: int) -> None:
        """End a session, for want of a sign of life or because a fault wants it."""
        if self.tree.is_alive(session_id):
            self.expired_total += 1
            self.wires.loop.trace.add(self.wires.loop.now_s, MACHINE, f"session {session_id} expires")
            self.tree.end(session_id)

    def is_deposed(self, name: str) -> bool:
        """Whether the process of that name has had a session, and none is left."""
        sessions = [number for number, process in self.owners.items() if process.name == name]
        return bool(sessions) and not any(self.tree.is_alive(number) for number in sessions)

    def _look_after(self, session_id: int) -> None:
        if not self.tree.is_alive(session_id):
            return
        rest_s = self._heard_s[session_id] + self._timeouts_s[session_id] - self.wires.loop.now_s
        if rest_s <= 0:
            self.expire(session_id)
        else:
            self.wires.loop.call_as(self.wires.loop.outside, rest_s, self._look_after, session_id)


class SimMetadataStore:
    """See `metadata.store.MetadataStore`: one process's session."""

    def __init__(self, service: MetadataService, process: Process, machine: str, timeout_s: float = 6.0) -> None:
        self._service = service
        self._loop = service.wires.loop
        self._process = process
        self._machine = machine
        self._timeout_s = timeout_s
        self._listeners = Listeners()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._calls_total = 0
        self._there_s = 0.0
        self._back_s = 0.0
        self._connected = True
        self._lost = False
        self._closed = False
        self._line = 0
        """Number of the connection: what an older one still brings is ignored."""
        self.proven_s = self._loop.now_s
        """When the newest answered request was sent."""
        self._session = self._open()
        self._lease: Lease | None = None
        self._loop.call_as(process, timeout_s / 3, self._ping)
        self._loop.call_as(process, 0.0, self._begin_lease)

    @property
    def session_id(self) -> int:
        return self._session.session_id

    @property
    def session_timeout_s(self) -> float:
        return self._timeout_s

    @property
    def proven_until_s(self) -> float:
        return -math.inf if self._lost else self.proven_s + self._timeout_s * GIVE_UP_SHARE

    @property
    def is_connected(self) -> bool:
        return self._connected

    def _begin_lease(self) -> None:
        """The lease of the production store: the session is given up before the service can give it away."""
        self._lease = Lease(self, SimClock(self._loop))
        self._lease.begin()

    def lease_over(self) -> None:
        if self._closed or self._lost:
            return
        self._loop.trace.add(self._loop.now_s, self._process.name, "gives its metadata session up")
        self._lost = True
        self._listeners.session(SessionEvent.SESSION_LOST)
        if self._connected:
            self._disconnect()

    async def get(self, path: str) -> Node | None:
        return await self._call("get", path, lambda session: session.get(path))

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> tuple[str, int]:
        return await self._call(
            "put",
            path,
            lambda session: session.put(path, value, expected_version, ephemeral=ephemeral, sequential=sequential),
        )

    async def create_missing(self, paths: Sequence[str], value: bytes = b"") -> int:
        created = [
            await self._call("put", path, lambda session, each=path: session.create_missing([each], value))  # type: ignore[misc]
            for path in paths
        ]
        return sum(created)

    async def delete(self, path: str, expected_version: int | None = None) -> None:
        await self._call("delete", path, lambda session: session.delete(path, expected_version))

    async def children(self, path: str) -> list[str]:
        return await self._call("children", path, lambda session: session.children(path))

    async def children_count(self, path: str) -> int:
        return await self._call("children_count", path, lambda session: session.children_count(path))

    async def exists(self, path: str) -> bool:
        return await self._call("exists", path, lambda session: session.exists(path))

    async def stat(self, path: str) -> Stat | None:
        return await self._call("stat", path, lambda session: session.stat(path))

    def watch(self, listener: Listener, prefix: str = "/") -> Callable[[], None]:
        return self._listeners.watch(listener, prefix)

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        return self._listeners.on_session(listener)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._lease is not None:
                self._lease.end()
            self._listeners.clear()
            self._fail_calls()
            session = self._session
            self._there(self._line, lambda: self._service.tree.end(session.session_id))

    # ---- Faults

    def drop_connection(self) -> None:
        """The connection breaks: what is under way may have been done or not. The client connects again."""
        if self._connected and not self._closed and self._process.alive:
            self._disconnect()

    # ---- Calls

    async def _call(self, operation: str, path: str, ask: Callable[[MemoryMetadataStore], Coroutine[Any, Any, T]]) -> T:
        if self._closed:
            raise MetadataClosedError("the metadata store is closed")
        if not self._connected:
            raise MetadataConnectionError("the metadata service cannot be reached")
        self._calls_total += 1
        number, line, session = self._calls_total, self._line, self._session
        future: asyncio.Future[T] = self._loop.create_future()
        self._calls[number] = future
        sent_s = self._loop.now_s

        def done_by_service() -> None:
            if not self._service.tree.is_alive(session.session_id):
                self._back(line, lambda: self._disconnect())
                return
            self._service.heard(session.session_id)
            outcome = self._do(operation, path, ask(session))
            self._back(line, lambda: self._answer(number, sent_s, outcome))

        self._there(line, done_by_service)
        timer = self._loop.call_later(self._timeout_s * 2 / 3, self._disconnect_if, line)
        try:
            return await future
        finally:
            timer.cancel()
            self._calls.pop(number, None)

    def _do(self, operation: str, path: str, work: Coroutine[Any, Any, T]) -> tuple[T | None, Exception | None]:
        service = self._service
        service.calls_total += 1
        trace = self._loop.trace
        changes = operation in ("put", "delete")
        if changes and service.moments.listeners:
            service.moments.tell(self._process, f"metadata {operation} before {path}")
        try:
            outcome: tuple[T | None, Exception | None] = (run_now(work), None)
        except Exception as error:
            outcome = (None, error)
        if changes:
            trace.add(self._loop.now_s, MACHINE, f"{self._process} {operation} {path} {outcome[1] or ''}")
            if service.on_change is not None and outcome[1] is None:
                service.on_change(self._process, operation, path)
            if service.moments.listeners:
                service.moments.tell(self._process, f"metadata {operation} after {path}")
        elif operation == "children" and service.moments.listeners:
            service.moments.tell(self._process, f"list after {path}")
        return outcome

    def _answer(self, number: int, sent_s: float, outcome: tuple[Any, Exception | None]) -> None:
        self.proven_s = max(self.proven_s, sent_s)
        future = self._calls.get(number)
        if future is None or future.done():
            return
        value, error = outcome
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)

    # ---- The way there and back, in order

    def _there(self, line: int, action: Callable[[], None]) -> None:
        wires, loop = self._service.wires, self._loop
        self._there_s = max(self._there_s, loop.now_s + self._service.delay_s * (0.5 + wires.rng.random()))

        def arrive() -> None:
            if not wires.is_cut(self._machine, MACHINE):
                action()

        loop.call_at(self._there_s, arrive, context=loop.outside.context)

    def _back(self, line: int, action: Callable[[], None]) -> None:
        wires, loop = self._service.wires, self._loop
        self._back_s = max(self._back_s, loop.now_s + self._service.delay_s * (0.5 + wires.rng.random()))

        def arrive() -> None:
            if line == self._line and not wires.is_cut(MACHINE, self._machine):
                action()

        loop.call_at(self._back_s, arrive, context=self._process.context)

    # ---- The session

    def _open(self) -> MemoryMetadataStore:
        session = MemoryMetadataStore(self._service.tree, self._timeout_s)
        self._service.begin(session.session_id, self._timeout_s)
        self._service.owners[session.session_id] = self._process
        self._hear(session)
        return session

    def _hear(self, session: MemoryMetadataStore) -> None:
        """Changes are told through the present connection, as far as somebody waits for them when they are made."""
        line, listeners = self._line, self._listeners

        def changed(path: str) -> None:
            if listeners.hear_of(path):
                self._back(line, lambda: listeners.changed(path))

        session.watch(changed)

    def _ping(self) -> None:
        if self._closed:
            return
        if self._connected:
            line, session, sent_s = self._line, self._session, self._loop.now_s
            answered: list[bool] = []

            def proven() -> None:
                answered.append(True)
                self.proven_s = max(self.proven_s, sent_s)

            def pinged() -> None:
                if self._service.tree.is_alive(session.session_id):
                    self._service.heard(session.session_id)
                    self._back(line, proven)
                else:
                    self._back(line, self._disconnect)

            self._there(line, pinged)
            self._loop.call_later(self._timeout_s / 3, self._check_ping, line, answered)
        self._loop.call_later(self._timeout_s / 3, self._ping)

    def _check_ping(self, line: int, answered: list[bool]) -> None:
        if not answered:
            self._disconnect_if(line)

    def _disconnect_if(self, line: int) -> None:
        if line == self._line and self._connected and not self._closed:
            self._disconnect()

    def _disconnect(self) -> None:
        self._connected = False
        self._line += 1
        self._loop.trace.add(self._loop.now_s, self._process.name, "loses the connection to the metadata service")
        self._fail_calls()
        if not self._lost:
            self._listeners.session(SessionEvent.CONNECTION_LOST)
        self._loop.call_as(self._process, RETRANSMIT_S, self._reconnect, self._line)  # it ends with its process

    def _fail_calls(self) -> None:
        for future in self._calls.values():
            if not future.done():
                future.set_exception(MetadataConnectionError("the connection to the metadata service broke"))

    def _reconnect(self, line: int) -> None:
        if line != self._line or self._connected or self._closed:
            return
        wires = self._service.wires
        if wires.is_cut(self._machine, MACHINE) or wires.is_cut(MACHINE, self._machine):
            self._loop.call_later(RETRANSMIT_S, self._reconnect, line)
            return
        tree = self._service.tree
        self._line += 1
        self._connected = True
        if tree.is_alive(self.session_id) and not self._lost:
            self._service.heard(self.session_id)
            self._hear(self._session)
            event = SessionEvent.RECONNECTED
        else:
            tree.end(self.session_id)
            if not self._lost:
                self._listeners.session(SessionEvent.SESSION_LOST)
            self._lost = False
            self._session = self._open()
            event = SessionEvent.SESSION_REESTABLISHED
        self.proven_s = self._loop.now_s
        if self._lease is not None:
            self._lease.begin()
        self._listeners.session(event)
        self._listeners.changed(RESYNC)
