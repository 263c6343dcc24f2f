"""Routing of scalable topics' clients, checkpoints, and reading of entries: over any layouts and bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnetar.base.errors import InvalidArgumentError
from magnetar.broker.scalable.layout import SegmentLayout
from magnetar.client.scalable.layout import Layout, Segment, hash_of
from magnetar.client.scalable.messages import Checkpoint, MessageId, read_entry
from magnetar.wire.pulsar.compression import PayloadError
from magnetar.wire.pulsar.PulsarApi_pb2 import CommandMessage

U64 = st.integers(0, 2**64 - 1)
HASHES = st.integers(0, 2**32 - 1)


def as_client(layout: SegmentLayout) -> Layout:
    segments = {
        each.id: Segment(each.id, each.start, each.end, each.active, each.parents, f"s{each.id}")
        for each in layout.segments.values()
    }
    return Layout("topic://t/n/x", layout.epoch, segments)


@st.composite
def layouts(draw: st.DrawFn) -> SegmentLayout:
    layout = SegmentLayout.create(draw(st.integers(1, 5)), 0)
    for _ in range(draw(st.integers(0, 8))):
        active = layout.active
        at = draw(st.integers(0, len(active) - 1))
        if draw(st.booleans()) and at + 1 < len(active):
            layout = layout.merge(active[at].id, active[at + 1].id, 1)
        elif active[at].end > active[at].start:
            layout = layout.split(active[at].id, 1)
    return layout


@given(layouts(), HASHES)
def test_a_key_goes_where_the_server_has_it(layout: SegmentLayout, key_hash: int) -> None:
    client = as_client(layout)
    assert client.at(key_hash).id == layout.at(key_hash >> 16).id
    assert client.at(key_hash, low_bits=True).id == layout.at(key_hash & 0xFFFF).id
    for number in layout.segments:
        assert client.ancestors(number) == set(layout.ancestors(number))


def test_hashes_are_those_of_the_official_clients() -> None:
    vectors = {"k0": 0x0B616CD6, "k7": 0x1B39BF7E, "a": 0x3C2569B2, "key-1": 0x98B115A0, "héllo": 0xBC9FA068}
    assert {key: hash_of(key) for key in vectors} == vectors


@given(st.dictionaries(st.integers(0, 2**62), st.tuples(U64, U64, st.integers(-1, 1000)), max_size=5))
def test_a_checkpoint_survives_its_bytes(found: dict[int, tuple[int, int, int]]) -> None:
    checkpoint = Checkpoint({number: MessageId(number, *place) for number, place in found.items()})
    assert Checkpoint.from_bytes(checkpoint.to_bytes()) == checkpoint


@given(st.binary(max_size=60))
def test_other_bytes_are_refused(data: bytes) -> None:
    try:
        found = Checkpoint.from_bytes(data)
    except InvalidArgumentError:
        return
    assert isinstance(found, Checkpoint)


@given(st.binary(max_size=80))
def test_an_entry_of_any_bytes_is_read_or_refused(data: bytes) -> None:
    told = CommandMessage(consumer_id=1, message_id={"ledgerId": 1, "entryId": 2})
    try:
        read_entry(0, "s", told, data, 1 << 20)
    except PayloadError:
        return
