"""Offsets and options without Spark or a broker."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.pipeline.connect.admin_rest import LedgerSize
from magnetar.pipeline.connect.errors import OffsetError, OptionError
from magnetar.pipeline.connect.offsets import EARLIEST, Position, Range, from_document, parse, split, to_document
from magnetar.pipeline.connect.options import frame_options, read_options, write_options
from magnetar.pipeline.connect.reading.limits import by_statistics
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageIdData

LEDGERS = st.lists(st.integers(0, 12), min_size=1, max_size=6)


@settings(deadline=None)  # a busy machine
@given(entries=LEDGERS, parts=st.integers(1, 9), data=st.data())
def test_the_parts_of_a_range_join_and_hold_about_as_many_entries(
    entries: list[int], parts: int, data: st.DataObject
) -> None:
    ledgers = [(2 * number, count) for number, count in enumerate(entries)]
    everything = [Position(ledger, entry) for ledger, count in ledgers for entry in range(count)]
    bounds = st.sampled_from([EARLIEST, *everything, Position(100, 0)])
    low, high = sorted((data.draw(bounds), data.draw(bounds)))
    pieces = split(Range("t", low, high), ledgers, parts)
    assert (pieces[0].start, pieces[-1].end) == (low, high)
    assert [each.end for each in pieces[:-1]] == [each.start for each in pieces[1:]]
    inside = [at for at in everything if low <= at < high]
    assert len(pieces) == 1 or len(pieces) <= parts
    held = [sum(1 for at in inside if each.start <= at < each.end) for each in pieces]
    assert sum(held) == len(inside)
    if len(pieces) > 1:
        assert max(held) <= -(-len(inside) // min(parts, len(inside)))


@settings(deadline=None)  # a busy machine
@given(entries=LEDGERS, size=st.integers(0, 4000), data=st.data())
def test_bytes_by_ledger_statistics_end_at_whole_entries(entries: list[int], size: int, data: st.DataObject) -> None:
    ledgers = [LedgerSize(2 * number, count, count * 10 * (number + 1)) for number, count in enumerate(entries)]
    everything = [Position(each.ledger, entry) for each in ledgers for entry in range(each.entries)]
    bounds = st.sampled_from([EARLIEST, *everything, Position(100, 0)])
    low, high = sorted((data.draw(bounds), data.draw(bounds)))
    inside = [at for at in everything if low <= at < high]
    end, used = by_statistics(Range("t", low, high), ledgers, size, at_least_one=True)
    taken = [at for at in inside if at < end]
    assert low <= end <= high
    assert taken or not inside
    assert used <= size or len(taken) <= 1
    rest = [at for at in inside if at >= end]
    assert end == high if not rest else used + 10 * (rest[0].ledger // 2 + 1) > size


def test_offsets_survive_sparks_log() -> None:
    offsets = {"b": Position(3, 7, 2), "a": EARLIEST}
    document = to_document(offsets)
    assert list(document) == ["a", "b"]
    assert from_document(document) == offsets
    assert parse('{"a": "latest", "b": {"ledger": 3, "entry": 7}}') == {"a": "latest", "b": Position(3, 7, 0)}


def test_message_ids_as_the_pulsar_connector_writes_them() -> None:
    """Signed bytes; where reading ends the message belongs to it."""
    alone, batched = MessageIdData(ledgerId=300, entryId=7), MessageIdData(ledgerId=300, entryId=7, batch_index=2)
    texts = [str([b - 256 if b > 127 else b for b in found.SerializeToString()]) for found in (alone, batched)]
    assert "-" in texts[0]
    assert parse(f'{{"a": {texts[0]}, "b": {texts[1]}}}') == {"a": Position(300, 7), "b": Position(300, 7, 2)}
    ends = parse(f'{{"a": {texts[0]}, "b": {texts[1]}}}', ids_included=True)
    assert ends == {"a": Position(300, 8), "b": Position(300, 7, 3)}
    latest = "[8,-1,-1,-1,-1,-1,-1,-1,-1,127,16,-1,-1,-1,-1,-1,-1,-1,-1,127]"
    earliest = "[8,-1,-1,-1,-1,-1,-1,-1,-1,-1,1,16,-1,-1,-1,-1,-1,-1,-1,-1,-1,1]"
    assert parse(f'{{"a": {latest}, "b": {earliest}}}') == {"a": "latest", "b": "earliest"}


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"a": 3}', '{"a": {"ledger": 1}}', '{"a": {"ledger": 1, "entry": true}}']
)
def test_what_is_no_offset_is_refused(text: str) -> None:
    with pytest.raises(OffsetError, match="earliest"):
        parse(text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "exactly one of"),
        ({"topic": "a"}, "service.url is missing"),
        ({"topic": "a", "service.url": "localhost:6650"}, "not a valid Pulsar URL"),
        ({"topic": "non-persistent://a/b/c", "service.url": "pulsar://h:1"}, "not a persistent or a scalable topic"),
        ({"topic": "a", "service.url": "pulsar://h:1", "failOnDataloss": "no"}, "true or false"),
        (
            {"topic": "a", "service.url": "pulsar://h:1", "maxMessagesPerTriger": "1"},
            "did you mean maxMessagesPerTrigger",
        ),
        ({"topic": "a", "service.url": "pulsar://h:1", "maxMessagesPerTrigger": "0"}, "at least 1"),
        (
            {"topic": "a", "service.url": "pulsar://h:1", "startingTime": "1", "startingOffsets": "latest"},
            "exclude each",
        ),
    ],
)
def test_options_are_refused_with_the_fix(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        read_options(options)


ADDRESS = {"service.url": "pulsar+ssl://h:1", "admin.url": "https://h:2"}


def test_names_of_the_pulsar_connector_mean_what_they_mean_there() -> None:
    given = {
        "topics": "a,b",
        "startingTime": '{"a": 5}',
        "endingTime": "9",
        "waitingForNonExistedTopic": "true",
        "pollTimeoutMs": "6000",
        "pulsar.client.useTls": "true",
        "pulsar.client.connectionTimeoutMs": "700",
        "pulsar.client.authPluginClassName": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "pulsar.client.authParams": "token:broker",
        "pulsar.client.tlsTrustCertsFilePath": "/ca.pem",
        "pulsar.admin.authParams": "token:admin",
        "pulsar.admin.tlsAllowInsecureConnection": "true",
        "pulsar.reader.receiverQueueSize": "10",
    }
    options = read_options(ADDRESS | given)
    assert (options.starting_time_ms, options.ending_time_ms) == ({"persistent://public/default/a": 5}, 9)
    assert (options.wait_for_topics, options.poll_timeout_ms, options.receiver_queue) == (True, 6000, 10)
    assert (options.connection.auth_params, options.connection.connection_timeout_ms) == ("token:broker", 700)
    admin = options.connection.admin
    assert admin is not None
    assert (admin.auth_params, admin.tls_trust_certs, admin.tls_allow_insecure) == ("token:admin", "/ca.pem", True)
    assert "token:" not in repr(options)
    sent = {"pulsar.producer.producerName": "me", "pulsar.producer.compressionType": "zstd"}
    written = write_options(ADDRESS | sent)
    assert (written.producer_name, written.compression) == ("me", "ZSTD")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("maxEntriesPerTrigger", "give maxMessagesPerTrigger"),
        ("topic.schema.class", "leave it out"),
        ("pulsar.client.serviceUrl", "give service.url"),
        ("pulsar.client.useKeyStoreTls", "give PEM files"),
        ("pulsar.client.tlsTrustStorePassword", "give PEM files"),
        ("pulsar.client.keepAliveIntervalSeconds", "leave out what only tunes"),
        ("pulsar.admin.requestTimeoutMs", "Of pulsar.admin"),
        ("pulsar.reader.subscriptionName", "give predefinedSubscription"),
        ("pulsar.reader.readCompacted", "FORMAT UPSERT"),
        ("pulsar.client.authParam", "did you mean pulsar.client.authParams"),
    ],
)
def test_names_of_the_pulsar_connector_that_are_not_taken_say_what_to_use(name: str, words: str) -> None:
    with pytest.raises(OptionError, match=words) as refused:
        read_options(ADDRESS | {"topic": "a", name: "a-value"})
    assert "a-value" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("pulsar.producer.batchingMaxMessages", "5", "cut by rows alone"),
        ("pulsar.producer.blockIfQueueFull", "false", "would lose rows"),
        ("pulsar.producer.topicName", "a", "give topic"),
        ("schema", "protobuf", "one of json, avro"),
    ],
)
def test_what_cannot_be_written_so_says_why(name: str, value: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        frame_options(ADDRESS | {name: value})


def test_credentials_are_not_in_the_text_of_options() -> None:
    given = {"topic": "a", "service.url": "pulsar://h:1", "pulsar.client.authParams": "token:secret"}
    options = read_options(given)
    assert options.connection.auth_params == "token:secret"
    assert "secret" not in repr(options)
    assert options.topics == ("persistent://public/default/a",)
