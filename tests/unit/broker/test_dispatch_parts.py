"""The small parts of dispatch: permits, waiting positions, redelivery, entry metadata."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.base.limits import PERMITS_MAX
from magnetar.broker.dispatch.entry_metadata import NO_MARKER, metadata_of
from magnetar.broker.dispatch.position_key import key_of, position_of
from magnetar.broker.dispatch.receiver import add_permits, messages_left
from magnetar.broker.dispatch.redelivery import RedeliveryCounts, RedeliveryQueue
from magnetar.broker.dispatch.waiting import Waiting
from magnetar.hashing.murmur3 import key_slot
from magnetar.managed_ledger.entry import Entry
from magnetar.wire.pulsar.headers import metadata_bounds

from .dispatch_fakes import payload

CRC = b"\x0e\x01\0\0\0\0"
BROKER = b"\x0e\x02\0\0\0\x03abc"


def test_permits_saturate_and_ignore_nonsense() -> None:
    assert add_permits(PERMITS_MAX - 1, 5) == PERMITS_MAX
    assert add_permits(-7, 5) == -2
    assert add_permits(3, 0) == 3
    assert add_permits(3, -5) == 3


def test_messages_left_counts_bits_of_signed_words_too() -> None:
    assert messages_left([0b1010]) == 2
    assert messages_left([-1, 1]) == 65
    assert messages_left([]) == 0


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_position_keys_round_trip(ledger_id: int, entry_id: int) -> None:
    assert position_of(key_of(ledger_id, entry_id)) == (ledger_id, entry_id)


@given(st.lists(st.tuples(st.sampled_from("aip"), st.integers(0, 500), st.integers(0, 65_535))))
def test_waiting_gives_out_in_order(steps: list[tuple[str, int, int]]) -> None:
    waiting = Waiting()
    model: list[int] = []
    top = 1000
    for what, number, slot in steps:
        if what == "p":
            if model:
                assert waiting.first() == min(model)
                assert waiting.pop() == min(model)
                model.remove(min(model))
        elif what == "a":
            top += 1 + number
            waiting.append(top, slot)
            model.append(top << 16 | slot)
        elif all(packed >> 16 != number for packed in model):
            waiting.insert(number << 16 | slot)
            model.append(number << 16 | slot)
        assert len(waiting) == len(model)
        assert bool(waiting) == bool(model)
        waiting.validate()
    assert sorted(waiting) == sorted(model)


def test_waiting_is_small_and_lets_go() -> None:
    waiting = Waiting()
    for number in range(250_000):
        waiting.append(7 << 32 | number, number & 0xFFFF)
    size = sys.getsizeof(waiting._keys) + sys.getsizeof(waiting._slots)
    assert size < 12 * 250_000
    for _ in range(240_000):
        waiting.pop()
    assert len(waiting) == 10_000
    assert sys.getsizeof(waiting._keys) + sys.getsizeof(waiting._slots) < size / 5


@given(st.lists(st.tuples(st.sampled_from(["add", "discard", "take", "update"]), st.integers(0, 50))))
def test_redelivery_queue_is_an_ordered_set(steps: list[tuple[str, int]]) -> None:
    queue = RedeliveryQueue()
    model: set[int] = set()
    for what, number in steps:
        if what == "add":
            queue.add(number)
            model.add(number)
        elif what == "update":
            queue.update([number, number + 3, number])
            model |= {number, number + 3}
        elif what == "discard":
            queue.discard(number)
            model.discard(number)
        else:
            taken = queue.take(number % 4)
            assert taken == sorted(model)[: number % 4]
            model -= set(taken)
        assert len(queue) == len(model)
        assert queue.first() == min(model, default=None)
        assert queue.keys() == sorted(model)
        queue.validate()


def test_redelivery_counts() -> None:
    counts = RedeliveryCounts()
    counts.increment(5)
    counts.increment(5)
    assert counts.by_key == {5: 2}
    counts.forget(5)
    counts.forget(6)
    assert counts.by_key == {}


@pytest.mark.parametrize("prefix", [b"", CRC, BROKER, BROKER + CRC])
def test_metadata_is_found_behind_all_headers(prefix: bytes) -> None:
    data = prefix + payload("k", 3, publish_time=77, deliver_at_time=99)
    metadata = metadata_of(Entry(1, 2, data))
    assert (metadata.num_messages, metadata.batched) == (3, True)
    assert (metadata.publish_time_ms, metadata.deliver_at_ms) == (77, 99)
    assert metadata.marker_type == NO_MARKER
    assert metadata.slot == key_slot(b"k")


def test_key_of_an_entry() -> None:
    def slot(**fields: object) -> int:
        return metadata_of(Entry(1, 1, payload(**fields))).slot  # type: ignore[arg-type]  # fields of MessageMetadata

    assert slot(key="k", ordering_key=b"o") == key_slot(b"o")
    assert slot(key="aGk=", partition_key_b64_encoded=True) == key_slot(b"hi")
    assert slot(key="***", partition_key_b64_encoded=True) == key_slot(b"***")
    assert slot(sequence=12) == key_slot(b"p-12")
    assert slot(key="") == key_slot(b"")


def test_parsed_once_and_shared() -> None:
    entry = Entry(1, 1, payload("k"))
    assert metadata_of(entry) is metadata_of(entry)


def test_a_batch_of_one_is_a_batch_and_zero_counts_as_one() -> None:
    one = metadata_of(Entry(1, 1, payload(batch=1)))
    assert (one.num_messages, one.batched) == (1, True)
    assert metadata_of(Entry(1, 1, payload(batch=0))).num_messages == 1
    assert metadata_of(Entry(1, 1, payload())).batched is False


@pytest.mark.parametrize(
    "data", [b"", b"\0\0", b"\0\0\xff\xff", b"\0\0\0\x02\xff\xff", BROKER, CRC, b"\x0e\x02\xff\xff\xff\xff"]
)
def test_damaged_entries_count_as_one_plain_message(data: bytes) -> None:
    metadata = metadata_of(Entry(1, 1, data))
    assert (metadata.num_messages, metadata.batched, metadata.slot) == (1, False, 1)


def test_bounds_reject_what_is_cut() -> None:
    with pytest.raises(ValueError, match="has no message metadata"):
        metadata_bounds(b"\0\0\0")
    with pytest.raises(ValueError, match="ends at byte"):
        metadata_bounds(b"\0\0\0\x09x")
