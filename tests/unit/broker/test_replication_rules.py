"""What becomes of an entry on its way to another cluster, and how it is recognised there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.replicators import names
from magnetar.broker.replicators.outgoing import Outgoing, Skip, UnknownSchema, outgoing
from magnetar.broker.topics.deduplication import Deduplicator, Verdict, packed
from magnetar.broker.topics.replicated_publish import place_of
from magnetar.wire.pulsar.headers import checksum_matches, parse_metadata, payload_of, with_checksum
from magnetar.wire.pulsar.markers import Snapshot, SnapshotRequest, SnapshotResponse, SubscriptionUpdate, encode
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageMetadata


def entry(**fields: Any) -> bytes:
    return with_checksum(MessageMetadata(producer_name="p", sequence_id=7, publish_time=99, **fields), b"payload")


def sent(data: bytes, versions: dict[bytes, bytes] | None = None) -> Outgoing:
    way = outgoing(data, 3, 4, "a", "b", versions or {})
    assert isinstance(way, Outgoing)
    return way


def test_an_entry_goes_with_its_origin_and_is_otherwise_as_it_was() -> None:
    way = sent(entry(partition_key="k", num_messages_in_batch=5, highest_sequence_id=11))
    metadata = parse_metadata(way.data)
    assert checksum_matches(way.data)
    assert payload_of(way.data) == b"payload"
    assert (metadata.replicated_from, place_of(metadata)) == ("a", (3, 4))
    assert (metadata.producer_name, metadata.publish_time, metadata.partition_key) == ("p", 99, "k")
    assert (way.sequence_id, way.highest_sequence_id, way.num_messages, way.marker) == (7, 11, 5, False)


def test_a_transactions_number_means_nothing_elsewhere() -> None:
    metadata = parse_metadata(sent(entry(txnid_most_bits=1, txnid_least_bits=2)).data)
    assert not metadata.HasField("txnid_most_bits")
    assert not metadata.HasField("txnid_least_bits")


def test_a_schema_has_another_version_there() -> None:
    data = entry(schema_version=b"here")
    assert outgoing(data, 3, 4, "a", "b", {}) == UnknownSchema(b"here")
    assert parse_metadata(sent(data, {b"here": b"there"}).data).schema_version == b"there"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (entry(replicated_from="c"), Skip.REPLICATED),
        (entry(replicate_to=["c"]), Skip.NOT_MEANT),
        (entry(replicate_to=["__local__"]), Skip.NOT_MEANT),
        (entry(marker_type=20), Skip.LOCAL_MARKER),
        (entry(marker_type=21), Skip.LOCAL_MARKER),
        (entry(marker_type=22), Skip.LOCAL_MARKER),
        (encode(Snapshot("s", (1, 2), {"b": (1, 1)}), 1, "a"), Skip.LOCAL_MARKER),
        (encode(SnapshotResponse("s", "a", (1, 1)), 1, "c"), Skip.NOT_MEANT),
        (b"\x0e\x01damaged", Skip.UNREADABLE),
    ],
)
def test_what_stays_here(data: bytes, expected: Skip) -> None:
    assert outgoing(data, 3, 4, "a", "b", {}) is expected


@pytest.mark.parametrize(
    "data",
    [
        encode(SnapshotRequest("s", "a"), 1),
        encode(SnapshotResponse("s", "a", (1, 1)), 1, "b"),
        encode(SubscriptionUpdate("sub", {"b": (1, 1)}), 1),
    ],
)
def test_markers_that_other_clusters_wait_for_travel(data: bytes) -> None:
    assert sent(data).marker


@pytest.mark.parametrize("text", ["", ":", "1:", ":1", "-1:2", "1:x", "1", "٣:1"])
def test_what_is_no_place(text: str) -> None:
    assert names.source_position(text) is None


def test_the_last_place_counts() -> None:
    metadata = MessageMetadata()
    for value in ("1:1", "2:2"):
        metadata.properties.add(key=names.SOURCE_POSITION_PROPERTY, value=value)
    assert place_of(metadata) == (2, 2)


def test_names_are_pulsars() -> None:
    assert names.cursor_name("b") == "pulsar.repl.b"
    assert names.producer_name("a", "b") == "pulsar.repl.a-->b"
    assert names.source_of_producer("pulsar.repl.a-->b") == "a"
    assert names.source_of_producer("pulsar.reply") is None
    assert names.cluster_of_cursor("pulsar.dedup") is None


LONG = st.integers(0, 2**63 - 1)


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), st.tuples(LONG, LONG)),
    st.dictionaries(st.sampled_from(["p", "q", "", "r s"]), LONG),
)
def test_places_and_sequence_ids_survive_a_snapshot(
    places: dict[str, tuple[int, int]], producers: dict[str, int]
) -> None:
    dedup = Deduplicator(producers_max=0 if not producers else 1000)
    for source, place in places.items():
        dedup.keep_place(names.sequence_name(source))
        dedup.persist(names.sequence_name(source), packed(*place))
    for producer, number in producers.items():
        dedup.persist(producer, number)
    stored = dedup.snapshot()
    assert all(0 <= number < 2**63 for number in stored.values())
    restored = Deduplicator(1000)
    restored.restore(stored)
    for source, place in places.items():
        name = names.sequence_name(source)
        assert restored.check(name, packed(*place)) is Verdict.DUPLICATE
        assert restored.check(name, packed(place[0], place[1] + 1)) is Verdict.NEW
        assert restored.check(name, packed(place[0] + 1, 0)) is Verdict.NEW
    assert {name: restored.last_sequence_id(name) for name in producers} == producers
    restored.forget_producers()
    assert all(restored.last_sequence_id(name) == -1 for name in producers)
    assert all(
        restored.last_sequence_id(names.sequence_name(source)) == packed(*place) for source, place in places.items()
    )


def test_many_producers_do_not_drive_out_a_cluster() -> None:
    dedup = Deduplicator(producers_max=2)
    dedup.keep_place("pulsar.repl.a")
    dedup.persist("pulsar.repl.a", packed(1, 1))
    for number in range(10):
        dedup.persist(f"p{number}", 1)
    assert set(dedup.snapshot()) == {"pulsar.repl.a_LID", "pulsar.repl.a_EID", "p8", "p9"}
