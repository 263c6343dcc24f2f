"""Turns of subscriptions: round the tenants, with a bound for each turn of the loop."""

from __future__ import annotations

import math

from magnetar.base.limits import DISPATCH_TURN_S
from magnetar.broker.dispatch.turns import DispatchTurns
from tests.unit.broker.dispatch_fakes import FakeScheduler


class Harness:
    """Each callback takes half of a turn and writes down whose it is."""

    def __init__(self) -> None:
        self.loop = FakeScheduler()
        self.spent_s = 0.0
        self.proven_until_s = math.inf
        self.turns = DispatchTurns(self.loop, self, lambda: self.proven_until_s)
        self.ran: list[str] = []

    def now_ms(self) -> int:
        return 0

    def monotonic_s(self) -> float:
        return self.spent_s

    def wake(self, tenant: str, again: int = 0) -> None:
        def run() -> None:
            self.ran.append(tenant)
            self.spent_s += DISPATCH_TURN_S / 2
            if again:
                self.wake(tenant, again - 1)

        self.turns.of(tenant).call_soon(run)

    def turn_of_the_loop(self) -> None:
        """What was ready at its beginning."""
        for _ in range(len(self.loop.ready)):
            self.loop.ready.popleft()()


def test_a_turn_of_the_loop_takes_so_long_however_many_have_a_backlog() -> None:
    harness = Harness()
    for _ in range(1000):
        harness.wake("flood")
    harness.turn_of_the_loop()
    assert len(harness.ran) == 2
    harness.turn_of_the_loop()
    assert len(harness.ran) == 4


def test_tenants_take_turns() -> None:
    """A subscription of another tenant does not wait for a thousand of this one."""
    harness = Harness()
    for _ in range(1000):
        harness.wake("flood", again=5)
    harness.turn_of_the_loop()
    harness.wake("steady")
    harness.turn_of_the_loop()
    harness.turn_of_the_loop()
    assert "steady" in harness.ran
    assert len(harness.ran) <= 6


def test_everybody_gets_a_turn_and_the_loop_rests_afterwards() -> None:
    harness = Harness()
    for number in range(10):
        harness.wake(f"tenant-{number % 3}", again=number)
    for _ in range(200):
        harness.turn_of_the_loop()
    assert len(harness.ran) == sum(number + 1 for number in range(10))
    assert not harness.loop.ready


def test_a_callback_that_fails_takes_no_turn_from_the_others() -> None:
    harness = Harness()

    def fail() -> None:
        raise RuntimeError("on purpose")

    harness.turns.of("bad").call_soon(fail)
    harness.wake("good")
    for _ in range(3):
        try:
            harness.turn_of_the_loop()
        except RuntimeError:  # an event loop would report it
            continue
    assert harness.ran == ["good"]


def test_who_stood_still_for_longer_than_its_session_sends_nothing_until_it_is_heard_of() -> None:
    harness = Harness()
    harness.proven_until_s = 10.0
    harness.wake("tenant")
    harness.turn_of_the_loop()
    assert harness.ran == ["tenant"]
    harness.wake("tenant")
    harness.spent_s = 12.0
    harness.turn_of_the_loop()
    harness.loop.advance(20)
    harness.turn_of_the_loop()
    assert harness.ran == ["tenant"], "another may be the owner"
    harness.proven_until_s = 20.0
    harness.loop.advance(20)
    harness.turn_of_the_loop()
    assert harness.ran == ["tenant", "tenant"]
    assert not harness.loop.ready
