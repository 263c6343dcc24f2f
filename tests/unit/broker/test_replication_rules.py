"""What becomes of an entry on its way to another cluster, and how it is recognised there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.replicators import names
from magnetar.broker.replicators.link import SCHEMA_VERSIONS_MAX, Link
from magnetar.broker.replicators.outgoing import SCHEMA_VERSION_BYTES_MAX, Outgoing, Skip, UnknownSchema, outgoing
from magnetar.broker.topics.deduplication import PLACES_AHEAD_MAX, Deduplicator, DuplicateStatus, packed
from magnetar.broker.topics.replicated_publish import place_of
from magnetar.managed_ledger.errors import CursorClosedError
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


def test_clients_cannot_make_a_link_remember_what_they_like() -> None:
    """They write any bytes into schema_version: one that is too long is not asked for, and there is room for so many only."""
    longest = b"v" * SCHEMA_VERSION_BYTES_MAX
    assert outgoing(entry(schema_version=longest), 3, 4, "a", "b", {}) == UnknownSchema(longest)
    assert not parse_metadata(sent(entry(schema_version=longest + b"v")).data).HasField("schema_version")
    link: Any = Link.__new__(Link)  # what it remembers, without a cursor and a connection
    link.schema_versions, link.failure = {}, CursorClosedError("stopped")
    for number in range(3 * SCHEMA_VERSIONS_MAX):
        version = number.to_bytes(8, "big")
        link.schema_known(version, b"there")
        assert link.schema_versions[version] == b"there"
        assert len(link.schema_versions) <= SCHEMA_VERSIONS_MAX


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


@pytest.mark.parametrize(
    "text", ["", ":", "1:", ":1", "-1:2", "1:x", "1", "٣:1", "1:-1", f"{10**19}:1", f"1:{10**19}", "9" * 5000 + ":1"]
)
def test_what_is_no_place(text: str) -> None:
    assert names.source_position(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [("7:3", (7, 3)), ("7:-1", (7, -1)), ("-1:-1", None), (":-1", None), ("7:-2", None), ("", None), ("-1", None)],
)
def test_the_end_of_a_log(text: str, expected: tuple[int, int] | None) -> None:
    assert names.log_end(text) == expected


@given(
    st.lists(st.tuples(st.integers(0, PLACES_AHEAD_MAX), st.integers(0, PLACES_AHEAD_MAX)), max_size=6),
    st.integers(0, 2**64),
    st.integers(0, 2**64 - 1),
)
def test_no_place_far_ahead_is_plausible_and_every_near_one_is(
    steps: list[tuple[int, int]], ahead: int, entry_id: int
) -> None:
    """A log moves on by ledgers; entries count anew in each."""
    dedup, name, ledger_id = Deduplicator(10), names.sequence_name("a"), 0
    dedup.keep_place(name)
    for step, entry in steps:
        ledger_id += step
        assert dedup.is_plausible(name, packed(ledger_id, entry))
        dedup.push(name, max(packed(ledger_id, entry), dedup.last_sequence_id(name)))
        dedup.persist(name, packed(ledger_id, entry))
    plausible = dedup.is_plausible(name, packed(ledger_id + ahead, entry_id))
    assert plausible == (ahead <= PLACES_AHEAD_MAX and entry_id <= PLACES_AHEAD_MAX)
    dedup.validate()


def test_a_place_behind_the_end_of_its_log_is_noticed() -> None:
    dedup, name = Deduplicator(10), names.sequence_name("a")
    assert not dedup.is_behind(name, (0, -1)), "nothing is known"
    dedup.persist(name, packed(7, 3))
    assert [dedup.is_behind(name, end) for end in ((7, 2), (6, 9), (7, -1), (0, -1))] == [True] * 4
    assert [dedup.is_behind(name, end) for end in ((7, 3), (7, 4), (8, -1), (8, 0))] == [False] * 4


def test_no_producers_names_make_a_place() -> None:
    """In a snapshot a place takes two properties; whoever chose such names must not move another producer's sequence ids."""
    dedup = Deduplicator(10)
    for name in ("victim_LID", "victim_EID"):
        dedup.persist(name, 5)
    restored = Deduplicator(10)
    restored.restore(dedup.snapshot())
    assert restored.last_sequence_id("victim") == -1
    assert restored.last_sequence_id("victim_LID") == 5


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
        assert restored.check(name, packed(*place)) is DuplicateStatus.DUPLICATE
        assert restored.check(name, packed(place[0], place[1] + 1)) is DuplicateStatus.NEW
        assert restored.check(name, packed(place[0] + 1, 0)) is DuplicateStatus.NEW
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


def test_only_segments_are_sent_to_by_segments() -> None:
    for source, of_segment, of_topic in (
        ("west", True, True),
        (names.source_name("west", "12"), True, False),
        ("west|", False, False),
        ("west|1x", False, False),
        ("west|1|2", False, False),
        ("west|" + "9" * 20, False, False),
    ):
        assert (names.is_source(source, True), names.is_source(source, False)) == (of_segment, of_topic), source
