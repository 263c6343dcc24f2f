"""The demo's judge: each way of going wrong is seen, and a killed consumer's repeats are not held against it."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from magnetar.cli.demo.records import FIELDS, RECORD
from magnetar.cli.demo.source import Flights
from magnetar.cli.demo.verdict import Log, judge

KEYS = ["a", "b", "a", "b", "a", "b"]


@pytest.fixture
def flights() -> Flights:
    payloads = [f"{index},line".encode() for index in range(len(KEYS))]
    return Flights(
        payloads=payloads,
        keys=KEYS,
        key_ids=np.unique(KEYS, return_inverse=True)[1],
        checksums=np.array([zlib.crc32(payload) for payload in payloads], np.uint32),
        distance=np.arange(6) * 100,
        air_time=np.arange(6) * 10,
        carrier=np.array([b"AA", b"UA"] * 3),
    )


def log(name: str, flights: Flights, deliveries: list[tuple[int, int]], *, killed: bool = False) -> Log:
    """`deliveries`: (time, index)."""
    packed = b"".join(
        RECORD.pack(at, i, int(flights.checksums[i]), i * 100, i * 10, bytes(flights.carrier[i]), 0)
        for at, i in deliveries
    )
    return Log(name, killed, np.frombuffer(packed, FIELDS))


def test_all_is_well(flights: Flights) -> None:
    verdict = judge(flights, [log("1", flights, [(1, 0), (3, 2), (5, 4)]), log("2", flights, [(2, 1), (4, 3), (6, 5)])])
    assert verdict.problems == []
    assert (verdict.messages, verdict.lost, verdict.duplicated, verdict.out_of_order) == (6, 0, 0, 0)
    assert verdict.sums["miles"] == (1500, 1500)
    assert verdict.sums["flights of AA"] == (3, 3)


def test_a_killed_consumer_explains_its_repeats_and_their_order(flights: Flights) -> None:
    first = log("1", flights, [(1, 0), (2, 1), (3, 2), (4, 3)], killed=True)
    second = log("2", flights, [(5, 2), (6, 3), (7, 4), (8, 5)])
    verdict = judge(flights, [first, second])
    assert verdict.problems == []
    assert (verdict.duplicated, verdict.unexplained) == (2, 0)


def test_repeats_of_a_living_consumer_are_a_problem(flights: Flights) -> None:
    both = [log("1", flights, [(i, i) for i in range(6)]), log("2", flights, [(9, 5)])]
    assert judge(flights, both).problems == ["1 messages duplicated without a reason"]


def test_lost_messages_show_in_count_and_sums(flights: Flights) -> None:
    verdict = judge(flights, [log("1", flights, [(i, i) for i in range(5)])])
    assert verdict.lost == 1
    assert verdict.problems[0] == "1 messages lost"
    assert "miles: 1500 in the file, 1000 consumed" in verdict.problems
    assert "flights of UA: 3 in the file, 2 consumed" in verdict.problems


def test_a_key_out_of_order_is_seen_across_consumers_and_within_one(flights: Flights) -> None:
    across = [log("1", flights, [(1, 2), (2, 4), (3, 1), (4, 3), (5, 5)]), log("2", flights, [(9, 0)])]
    assert judge(flights, across).out_of_order == 1
    within = [log("1", flights, [(1, 0), (2, 1), (3, 4), (4, 3), (5, 2), (6, 5)])]
    assert judge(flights, within).out_of_order == 1


def test_order_between_keys_does_not_matter(flights: Flights) -> None:
    assert judge(flights, [log("1", flights, [(n, i) for n, i in enumerate([1, 3, 5, 0, 2, 4])])]).problems == []


def test_a_damaged_payload_is_seen(flights: Flights) -> None:
    good = log("1", flights, [(i, i) for i in range(6)])
    records = good.records.copy()
    records["checksum"][3] += 1
    assert judge(flights, [good._replace(records=records)]).corrupted == 1


def test_nothing_at_all_is_all_lost(flights: Flights) -> None:
    assert judge(flights, []).lost == 6
