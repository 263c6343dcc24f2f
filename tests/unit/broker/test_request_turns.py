"""Whose control request is next, and which of them wait because answers are not read."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

from magnetar.base import limits
from magnetar.base.clock import SystemClock
from magnetar.base.tasks import TaskScope
from magnetar.broker.auth.authenticate import Credentials
from magnetar.broker.auth.principal import Principal
from magnetar.broker.config import BrokerConfig
from magnetar.broker.connection.requests import ControlRequests, RequestTurns
from magnetar.broker.connection.routes import BEFORE_CONNECT, ROUTES
from magnetar.broker.connection.session import Session
from magnetar.wire.pulsar.frames import encode_frame
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand

MIB = 1024 * 1024
SOON_S = 5.0


class Harness:
    """Connections whose requests write down that they started, and end when they are told to."""

    def __init__(self, scope: TaskScope) -> None:
        self.turns = RequestTurns(scope, SystemClock())
        self.started: list[str] = []
        self.may_end = asyncio.Event()
        self.unread: dict[ControlRequests, int] = {}
        self.paused: set[ControlRequests] = set()
        self.open: list[ControlRequests] = []

    def connection(self, principal: str) -> ControlRequests:
        made = ControlRequests(
            self.turns,
            "/127.0.0.1:1",
            lambda: self.unread.get(made, 0),
            lambda: self.paused.add(made),
            lambda: self.paused.discard(made),
        )
        made.belong_to(principal)
        self.open.append(made)
        return made

    def end(self, connection: ControlRequests) -> None:
        self.open.remove(connection)
        connection.close()
        connection.forget()

    def ask(self, connection: ControlRequests, name: str, answer_bytes: int = 0, times: int = 1) -> None:
        for _ in range(times):
            connection.spawn(self._work(name), name, answer_bytes)

    async def _work(self, name: str) -> None:
        self.started.append(name)
        await self.may_end.wait()


def in_scope(test: Callable[[Harness], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with TaskScope("test") as scope:
            harness = Harness(scope)
            await test(harness)
            harness.may_end.set()
            for connection in list(harness.open):
                harness.end(connection)
            await wait_until_async(lambda: harness.turns.idle, SOON_S, "everything has ended")
            harness.turns.validate()
            assert harness.turns.unread_bytes == 0

    asyncio.run(run())


async def wait_until_async(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0)
    except TimeoutError:
        raise AssertionError(f"not within {timeout_s} s: {what}") from None


async def turns_of_the_loop(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_who_asks_once_does_not_wait_for_who_asks_a_lot() -> None:
    async def test(harness: Harness) -> None:
        harness.may_end.set()
        for number in range(20):
            harness.ask(harness.connection("many"), f"many-{number}", times=100)
        harness.ask(harness.connection("one"), "one")
        await wait_until_async(lambda: "one" in harness.started, SOON_S, "its turn")
        assert len(harness.started) <= max(limits.REQUESTS_STARTED_PER_TURN, 2), "of two principals it is the second"
        await wait_until_async(lambda: len(harness.started) == 2001, SOON_S, "all have had theirs")
        # The connections of one principal take turns as well.
        assert {f"many-{number}" for number in range(20)} <= set(harness.started[:30])

    in_scope(test)


def test_a_turn_starts_a_few() -> None:
    async def test(harness: Harness) -> None:
        for number in range(50):
            harness.ask(harness.connection(f"principal-{number}"), "request")
        await turns_of_the_loop(2)  # the turn, then the first steps of what it started
        assert 0 < len(harness.started) <= limits.REQUESTS_STARTED_PER_TURN

    in_scope(test)


def test_a_principal_has_so_many_under_way_and_the_next_starts_when_one_ends() -> None:
    async def test(harness: Harness) -> None:
        first = harness.connection("many")
        harness.ask(first, "request", times=limits.REQUESTS_UNDER_WAY_PER_PRINCIPAL_MAX + 5)
        await turns_of_the_loop(20)
        assert len(harness.started) == limits.REQUESTS_UNDER_WAY_PER_PRINCIPAL_MAX
        harness.may_end.set()
        await turns_of_the_loop(20)
        assert len(harness.started) == limits.REQUESTS_UNDER_WAY_PER_PRINCIPAL_MAX + 5

    in_scope(test)


def test_requests_that_wait_for_something_else_hold_nobody_up() -> None:
    """Twice as many as may be under way, and none of them ever ends: the next one starts all the same."""

    async def test(harness: Harness) -> None:
        connection = harness.connection("slow")
        harness.ask(connection, "slow", times=2 * limits.REQUESTS_UNDER_WAY_PER_PRINCIPAL_MAX)
        harness.ask(connection, "next")
        await wait_until_async(lambda: "next" in harness.started, SOON_S, "its turn")
        for number in range(20):
            harness.ask(
                harness.connection(f"other-{number}"), "other", times=limits.REQUESTS_UNDER_WAY_PER_PRINCIPAL_MAX
            )
        harness.ask(harness.connection("last"), "last")
        await wait_until_async(lambda: "last" in harness.started, SOON_S, "its turn, although all places were taken")

    in_scope(test)


def test_a_connection_that_does_not_read_gets_no_further_turn() -> None:
    async def test(harness: Harness) -> None:
        harness.may_end.set()
        stuck, reads = harness.connection("tenant"), harness.connection("tenant")
        harness.unread[stuck] = limits.CONNECTION_OUTPUT_HIGH_BYTES
        harness.ask(stuck, "stuck", times=limits.PENDING_REQUESTS_PER_CONNECTION_MAX)
        harness.ask(reads, "reads", times=10)
        await wait_until_async(lambda: len(harness.started) == 10, SOON_S, "the other connection")
        await asyncio.sleep(3 * limits.REQUESTS_LOOK_AGAIN_S)
        assert "stuck" not in harness.started
        assert harness.paused == {stuck}, "it has as many as one connection may have"
        harness.unread[stuck] = 0  # nobody says so: it is looked at
        await wait_until_async(lambda: harness.started.count("stuck") == 100, SOON_S, "its turn")
        assert not harness.paused

    in_scope(test)


def test_room_is_kept_for_an_answer_before_it_is_made() -> None:
    """One large answer at a time, however fast a connection asks."""

    async def test(harness: Harness) -> None:
        harness.ask(harness.connection("lists"), "list", limits.LARGE_ANSWER_BYTES, times=10)
        await turns_of_the_loop(30)
        assert harness.started == ["list"]

    in_scope(test)


def test_a_principal_leaves_room_for_others_however_many_connections_it_has() -> None:
    async def test(harness: Harness) -> None:
        hoard, other = [harness.connection("hoard") for _ in range(200)], harness.connection("other")
        half = limits.UNREAD_ANSWERS_BYTES_MAX // 2 // limits.LARGE_ANSWER_BYTES
        for connection in hoard:
            harness.ask(connection, "hoard", limits.LARGE_ANSWER_BYTES)
        await wait_until_async(lambda: len(harness.started) >= half, SOON_S, "half of the room is taken")
        await asyncio.sleep(5 * limits.REQUESTS_LOOK_AGAIN_S)
        assert harness.started.count("hoard") * limits.LARGE_ANSWER_BYTES <= limits.UNREAD_ANSWERS_BYTES_MAX // 2
        harness.ask(other, "other", limits.LARGE_ANSWER_BYTES)
        await wait_until_async(lambda: "other" in harness.started, SOON_S, "there is room for others")

    in_scope(test)


def test_who_holds_most_is_closed_when_all_together_hold_too_much() -> None:
    """Answers to what is not a request (receipts, PONG) are not held back, so they end with this."""

    async def test(harness: Harness) -> None:
        small, large = harness.connection("small"), harness.connection("large")
        assert small.answers_wait(MIB)
        assert large.answers_wait(limits.UNREAD_ANSWERS_BYTES_MAX)
        assert not large.answers_wait(2 * limits.UNREAD_ANSWERS_BYTES_MAX)
        assert small.answers_wait(2 * MIB)
        harness.ask(small, "small")
        await wait_until_async(lambda: "small" in harness.started, SOON_S, "a little is free for everybody")

    in_scope(test)


def test_nothing_is_left_of_connections_that_end() -> None:
    """Requests, answers and ends in random order, from some principals."""

    async def test(harness: Harness) -> None:
        rng = random.Random(7)
        harness.may_end.set()
        alive = harness.open
        for _ in range(2000):
            what = rng.random()
            if what < 0.1 or not alive:
                harness.connection(f"principal-{rng.randrange(4)}")
            connection = rng.choice(alive)
            if what < 0.5:
                harness.ask(
                    connection, "request", rng.choice((1024, limits.LARGE_ANSWER_BYTES)), times=rng.randrange(5)
                )
            elif what < 0.7:
                harness.unread[connection] = rng.choice((0, MIB // 2, 2 * MIB))
                connection.answers_wait(harness.unread[connection])
            elif what < 0.8:
                connection.answers_were_read()
            elif what < 0.85:
                connection.set_busy(rng.random() < 0.5)
            elif what < 0.95:
                await asyncio.sleep(0)
            else:
                harness.end(connection)
            harness.turns.validate()

    in_scope(test)


# ---- Frames


class Transport:
    """As far as a session that only reads needs one."""

    def __init__(self) -> None:
        self.reading = True
        self.sent = 0

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 1) if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def write(self, data: bytes) -> None:
        self.sent += len(data)

    def close(self) -> None: ...

    def abort(self) -> None: ...


class SlowClock(SystemClock):
    """Time passes in handlers only."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s


def test_credentials_are_verified_in_turns() -> None:
    """A hundred CONNECTs arrive in one turn of the loop; some are looked at in each of the next ones, and what follows them waits."""

    async def run() -> None:
        async with TaskScope("test") as scope:
            clock, verified = SystemClock(), list[str]()

            def authenticate(shown: Credentials) -> Principal:
                verified.append(shown.method)
                return Principal("role", "token")

            context: Any = SimpleNamespace(
                budget=None,
                config=BrokerConfig(),
                clock=clock,
                scope=scope,
                turns=RequestTurns(scope, clock),
                counters=SimpleNamespace(opened=0, active=0),
                security=SimpleNamespace(authentication=SimpleNamespace(authenticate=authenticate)),
            )
            hello = BaseCommand(type=BaseCommand.CONNECT)
            hello.connect.client_version, hello.connect.auth_method_name = "crowd", "token"
            ping = encode_frame(BaseCommand(type=BaseCommand.PING, ping={}).SerializeToString())
            sessions = [Session(context, BEFORE_CONNECT, ROUTES, {}) for _ in range(100)]
            for session in sessions:
                session.connection_made(Transport())  # type: ignore[arg-type]
                session.data_received(encode_frame(hello.SerializeToString()) + ping)
            assert not verified
            for turn in range(1, 20):
                await asyncio.sleep(0)
                assert len(verified) <= turn * limits.REQUESTS_STARTED_PER_TURN
            await wait_until_async(lambda: len(verified) == 100, SOON_S, "all are verified")
            await turns_of_the_loop(5)
            assert all(session.connected and session.requests.share.key == "role role" for session in sessions)
            for session in sessions:
                session.connection_lost(None)
            context.turns.validate()

    asyncio.run(run())


def test_a_turn_of_frames_ends_with_its_time_and_reading_waits_for_the_rest() -> None:
    """Five frames fill a turn: a connection alone handles some of them before others get their turn, ten of one principal fewer each."""

    async def run() -> None:
        async with TaskScope("test") as scope:
            clock = SlowClock()
            handled: list[Session] = []

            def handler(session: Session, command: BaseCommand, rest: bytes) -> None:
                clock.now_s += limits.FRAMES_TURN_S / 5
                handled.append(session)

            context: Any = SimpleNamespace(
                budget=None,
                config=BrokerConfig(),
                clock=clock,
                scope=scope,
                turns=RequestTurns(scope, clock),
                counters=SimpleNamespace(opened=0, active=0),
            )

            def opened() -> tuple[Session, Transport]:
                session, transport = Session(context, {BaseCommand.PING: handler}, {}, {}), Transport()
                session.connection_made(transport)  # type: ignore[arg-type]
                return session, transport

            burst = encode_frame(BaseCommand(type=BaseCommand.PING, ping={}).SerializeToString()) * 100
            session, transport = opened()
            session.data_received(burst)
            assert len(handled) == limits.FRAMES_PER_LOOK_AT_CLOCK
            assert not transport.reading
            await asyncio.sleep(0)
            assert len(handled) == 2 * limits.FRAMES_PER_LOOK_AT_CLOCK
            await turns_of_the_loop(20)
            assert len(handled) == 100
            assert transport.reading
            for each in [session, *(opened()[0] for _ in range(3))]:
                each.data_received(burst)
            handled.clear()
            await asyncio.sleep(0)
            assert len(set(handled)) == 4, "each had a turn"
            await turns_of_the_loop(20)
            assert len(handled) == 4 * (100 - limits.FRAMES_PER_LOOK_AT_CLOCK)
            session.connection_lost(None)

    asyncio.run(run())
