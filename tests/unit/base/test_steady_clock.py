"""A jump of the wall clock is not followed until it has held."""

from __future__ import annotations

from magnetar.base.steady_clock import HOLD_S, JUMP_MS, SteadyClock

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


class Hands:
    """Two clocks set by hand."""

    def __init__(self) -> None:
        self.wall_ms = START_MS
        self.passed_s = 5.0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_s(self) -> float:
        return self.passed_s

    def pass_s(self, seconds: float, *, wall_s: float | None = None) -> None:
        self.passed_s += seconds
        self.wall_ms += round((seconds if wall_s is None else wall_s) * 1000)


def test_time_passes() -> None:
    hands = Hands()
    clock = SteadyClock(hands)
    for seconds in (0.0, 0.001, 1, 86_400, 0.5):
        hands.pass_s(seconds)
        assert clock.now_ms() == hands.wall_ms
        assert clock.monotonic_s() == hands.passed_s
    assert (clock.jumps, clock.ahead_ms) == (0, 0)


def test_a_jump_forth_and_back_is_as_if_it_had_not_been() -> None:
    for by_ms in (HOUR_MS, -HOUR_MS):
        hands = Hands()
        clock = SteadyClock(hands)
        hands.wall_ms += by_ms
        for _ in range(5):
            hands.pass_s(HOLD_S / 6)
            assert clock.now_ms() == hands.wall_ms - by_ms
        assert (clock.jumps, clock.ahead_ms) == (1, by_ms)
        hands.wall_ms -= by_ms
        hands.pass_s(1)
        assert clock.now_ms() == hands.wall_ms
        assert (clock.jumps, clock.ahead_ms) == (1, 0)


def test_a_time_that_holds_is_followed() -> None:
    hands = Hands()
    clock = SteadyClock(hands)
    hands.wall_ms += HOUR_MS
    assert clock.now_ms() == START_MS
    hands.pass_s(HOLD_S - 1)
    assert clock.now_ms() == hands.wall_ms - HOUR_MS
    hands.pass_s(1)
    assert clock.now_ms() == hands.wall_ms
    hands.pass_s(1)
    assert clock.now_ms() == hands.wall_ms
    assert (clock.jumps, clock.ahead_ms) == (1, 0)


def test_another_jump_begins_the_wait_anew() -> None:
    hands = Hands()
    clock = SteadyClock(hands)
    hands.wall_ms += HOUR_MS
    assert clock.now_ms() == START_MS
    hands.pass_s(HOLD_S - 1)
    hands.wall_ms -= 2 * HOUR_MS
    assert clock.now_ms() == hands.wall_ms + HOUR_MS
    hands.pass_s(HOLD_S - 1)
    assert clock.now_ms() == hands.wall_ms + HOUR_MS
    hands.pass_s(1)
    assert clock.now_ms() == hands.wall_ms
    assert clock.jumps == 2


def test_small_corrections_are_followed_at_once() -> None:
    hands = Hands()
    clock = SteadyClock(hands)
    for by_ms in (JUMP_MS, -JUMP_MS, 1, -1):
        hands.wall_ms += by_ms
        assert clock.now_ms() == hands.wall_ms
    assert clock.jumps == 0
