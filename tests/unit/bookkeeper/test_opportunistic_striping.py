"""New ledgers while bookies are missing: fewer of them, never fewer copies, and not on one that failed just now."""

from __future__ import annotations

import random

import pytest

from magnetar.bookkeeper.client.bookies import AVOIDED_S, BookieDirectory
from magnetar.bookkeeper.errors import NotEnoughBookiesError
from tests.unit.bookkeeper.fake_bookies import Cluster

RNG = random.Random(7)


class ManualClock:
    """Time moves when told."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic_s(self) -> float:
        return self.seconds


def directory_of(count: int) -> tuple[BookieDirectory, ManualClock]:
    clock = ManualClock()
    directory = BookieDirectory(clock=clock)
    for number, fake in enumerate(Cluster(count).bookies):
        directory.register(f"b{number}", fake)
    return directory, clock


def test_fewer_bookies_down_to_the_least() -> None:
    directory, _ = directory_of(3)
    for present, expected in ((3, 3), (2, 2)):
        assert len(directory.choose_ensemble(3, 2, RNG, at_least=2)) == expected
        directory.unregister(directory.writable()[0])
        assert present
    with pytest.raises(NotEnoughBookiesError, match="needs 2 writable bookies and there are 1"):
        directory.choose_ensemble(3, 2, RNG, at_least=2)


def test_without_leave_the_size_is_the_size() -> None:
    directory, _ = directory_of(2)
    with pytest.raises(NotEnoughBookiesError):
        directory.choose_ensemble(3, 2, RNG)


def test_one_that_failed_just_now_is_left_out_for_a_while() -> None:
    directory, clock = directory_of(3)
    failed = directory.writable()[1]
    directory.note_failure(failed)
    for _ in range(20):
        assert failed not in directory.choose_ensemble(3, 2, RNG, at_least=2)
        assert failed not in directory.choose_ensemble(2, 2, RNG)
    assert failed in directory.choose_ensemble(3, 2, RNG), "there is no other third one"
    clock.seconds += AVOIDED_S
    assert failed in directory.choose_ensemble(3, 2, RNG, at_least=2)


def test_in_need_those_that_failed_are_taken() -> None:
    directory, _ = directory_of(3)
    for bookie_id in directory.writable():
        directory.note_failure(bookie_id)
    assert len(directory.choose_ensemble(3, 2, RNG, at_least=2)) == 2
