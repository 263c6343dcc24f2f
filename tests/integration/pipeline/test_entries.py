"""Entries from raw frames: none is lost or doubled, whatever is asked in between and whatever breaks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pulsar
import pytest

from magnetar.pipeline.connect.admin_rest import AdminRest
from magnetar.pipeline.connect.broker import Topics, id_position
from magnetar.pipeline.connect.errors import DataLossError
from magnetar.pipeline.connect.offsets import EARLIEST, Position, Range
from magnetar.pipeline.connect.options import Connection, read_options
from magnetar.pipeline.connect.raw import entries as entries_module
from magnetar.pipeline.connect.raw.connection import RawConnection
from magnetar.pipeline.connect.raw.entries import Entry, RawEntries, read_entry
from magnetar.pipeline.connect.reading import range_reader
from magnetar.pipeline.connect.reading.counting import Counter
from magnetar.pipeline.connect.reading.entries import ClientEntries
from magnetar.pipeline.connect.reading.range_reader import KeptConnections, read_entries
from magnetar.testing.server import ServerProcess
from tests.support.topics import produce
from tests.support.waiting import wait_until

BATCHING = {
    "block_if_queue_full": True,
    "batching_enabled": True,
    "batching_max_messages": 100,
    "batching_max_publish_delay_ms": 50,
}
COMPRESSIONS = [
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]


def collect(source: RawEntries[Entry] | ClientEntries, count: int, ask: bool = False) -> list[bytes | None]:
    found: list[bytes | None] = []
    give_up = time.monotonic() + 30
    while len(found) < count and time.monotonic() < give_up:
        for entry in source.receive(0.5):
            found += entry.messages.values()
        if ask:
            assert source.has_more() is (len(found) < count)
    source.close()
    return found


def test_a_question_between_messages_loses_none(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    values = [b"%d" % number + b"x" * 500 for number in range(30_000)]
    produce(client, topic, values, **BATCHING)
    connection = read_options({"service.url": server.service_url, "topic": topic}).connection
    assert collect(RawEntries(connection, topic, EARLIEST, read_entry), len(values), ask=True) == values
    middle = collect(RawEntries(connection, topic, Position(0, 0, 3), read_entry), len(values))
    assert middle == values


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_official_client_finds_the_same(
    server: ServerProcess, client: pulsar.Client, topic: str, compression: pulsar.CompressionType
) -> None:
    producer = client.create_producer(topic, compression_type=compression, **BATCHING)
    for number in range(300):
        properties = {"n": str(number)} if number % 3 == 0 else None
        content = None if number % 7 == 0 else b"v%d" % number
        key = f"k{number}" if number % 2 else None
        producer.send_async(content, lambda _result, _id: None, properties, key, event_timestamp=number % 5)
    producer.flush()
    producer.send(b"alone", partition_key="z")
    options = read_options({"service.url": server.service_url, "topic": topic})

    def seen(source: RawEntries[Entry] | ClientEntries) -> list[object]:
        found: list[object] = []
        while len(found) < 301:
            for entry in source.receive(5.0):
                some = entry.messages
                nothing = [None] * len(some)
                found += zip(
                    [(entry.ledger, entry.entry, entry.batch_size, entry.publish_time_ms)] * len(some),
                    some.indexes,
                    some.values(),
                    some.keys or nothing,
                    some.event_times_ms or [0] * len(some),
                    [sorted(each) for each in some.properties or [[] for _ in nothing]],
                    strict=True,
                )
        source.close()
        return found

    raw = seen(RawEntries(options.connection, topic, EARLIEST, read_entry))
    assert raw == seen(ClientEntries(options.connection, topic, EARLIEST))


def test_what_only_the_client_reads_is_read_by_it(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    produce(client, topic, [b"a", b"b"])
    large = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    large.send(b"c" * 6_000_000)
    produce(client, topic, [b"d"])
    options = read_options({"service.url": server.service_url, "topic": topic})
    whole = Range(topic, EARLIEST, Position(2**40, 0))
    found: list[bytes | None] = []
    for entry in read_entries(options, whole):
        found += entry.messages.values()
        if len(found) == 4:
            break
    assert found == [b"a", b"b", b"c" * 6_000_000, b"d"]


def test_a_server_that_dies_again_and_again_costs_nothing(
    start_server: Callable[..., ServerProcess], connect: Callable[..., pulsar.Client]
) -> None:
    server = start_server(defaultRetentionTimeInMinutes=60, defaultRetentionSizeInMB=-1)
    topic = "persistent://public/default/dies"
    values = [b"%d" % number + b"x" * 2000 for number in range(20_000)]
    produce(connect(server.service_url), topic, values, **BATCHING)
    options = read_options({"service.url": server.service_url, "topic": topic})
    seen = 0
    found: list[bytes | None] = []
    kills = iter([2_000, 9_000])
    due = next(kills)
    for entry in read_entries(options, Range(topic, EARLIEST, Position(2**40, 0))):
        found += entry.messages.values()
        seen = len(found)
        if seen >= due:
            due = next(kills, 10**9)
            threading.Thread(target=server.restart).start()
        if seen >= len(values):
            break
    assert found == values


def test_a_counter_cuts_anywhere_and_gets_each_entry_once(
    server: ServerProcess, client: pulsar.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of 10 messages of 50 bytes; it goes on within one, counts what a limit left, and connects once."""
    connected: list[str] = []
    connect = entries_module.connect_to

    def counted(connection: Connection, name: str) -> RawConnection:
        connected.append(name)
        return connect(connection, name)

    monkeypatch.setattr(entries_module, "connect_to", counted)
    batching = {"batching_enabled": True, "batching_max_messages": 10, "batching_max_publish_delay_ms": 5000}
    ids = produce(client, topic, [b"x" * 50] * 95, **batching)
    options = read_options({"service.url": server.service_url, "topic": topic})
    counter, at = Counter(options, topic), EARLIEST
    end = Position(ids[-1].ledger_id(), ids[-1].entry_id() + 1)
    for rows, size, found in [(12, None, 12), (None, 520, 8), (7, 10_000, 7), (None, 1, 1), (30, None, 30)]:
        at, count, total = counter.take(Range(topic, at, end), rows, size, True)
        assert count == found
        assert 50 * count <= total <= 80 * count
        assert size is None or total <= size or count == 1
    # The message before the cut at which the counter stands now.
    assert id_position(ids[57]).after() in (at, Position(at.ledger, at.entry - 1, 10))
    assert counter.take(Range(topic, at, Position(end.ledger, end.entry - 1, 3)), None, None, True)[1] == 95 - 58 - 2
    assert connected == [topic]
    back = counter.take(Range(topic, EARLIEST, end), None, None, True)
    assert (back[:2], connected) == ((end, 95), [topic, topic])
    counter.close()


def test_a_ledger_that_is_gone_was_read_to_its_end_or_was_not(
    start_server: Callable[..., ServerProcess], connect: Callable[..., pulsar.Client]
) -> None:
    server = start_server(
        managedLedgerMaxEntriesPerLedger=3,
        managedLedgerMinLedgerRolloverTimeMinutes=0,
        retentionCheckIntervalInSeconds=1,
    )
    topic, client = "persistent://public/default/trimmed", connect(server.service_url)
    holder = client.subscribe(topic, "holder")
    first, *_, last = [id_position(each) for each in produce(client, topic, [b"%d" % number for number in range(5)])]
    given = {"service.url": server.service_url, "topic": topic}
    by_admin = read_options(given | {"admin.url": server.http_url})
    finished, begun = Position(first.ledger, 3), Position(first.ledger, 1)
    seen = {at: Topics(by_admin) for at in (finished, begun)}
    for at, topics in seen.items():
        assert topics.check_loss({topic: at}) == {topic: at}
    assert first.ledger < last.ledger
    for _ in range(4):
        holder.acknowledge_cumulative(holder.receive(30_000))
    admin = AdminRest(by_admin.connection)
    wait_until(lambda: admin.ledgers(topic)[0][0] == last.ledger, 60)

    for _ in range(2):  # what was known stays known
        assert seen[finished].check_loss({topic: finished}) == {topic: finished}
        with pytest.raises(DataLossError, match="what lay between was deleted"):
            seen[begun].check_loss({topic: begun})
    for options in (by_admin, read_options(given)):
        with pytest.raises(DataLossError, match="cannot be told"):
            Topics(options).check_loss({topic: finished})
        with pytest.raises(DataLossError, match="was deleted"):
            Topics(options).check_loss({topic: Position(first.ledger, 1, 1)})
    forgiving = Topics(read_options(given | {"failOnDataLoss": "false"}))
    assert forgiving.check_loss({topic: begun})[topic].ledger == last.ledger
    within = Range(topic, Position(first.ledger, 1, 1), last)
    with pytest.raises(DataLossError, match="not there any more"):
        list(read_entries(read_options(given), within))


def test_ranges_of_one_connection_are_those_of_many(
    server: ServerProcess, client: pulsar.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges that end in the middle of batches, rows that come later, a range that begins elsewhere, and connections that break."""
    options = read_options({"service.url": server.service_url, "topic": topic})
    opened: list[RawConnection] = []

    def watched(*arguments: object) -> RawConnection:
        opened.append(connect_to(*arguments))
        return opened[-1]

    connect_to = entries_module.connect_to
    monkeypatch.setattr(entries_module, "connect_to", watched)
    monkeypatch.setattr(range_reader, "KEPT_S", 1e9)
    monkeypatch.setattr(range_reader, "KEPT_AT_ALL_S", 1e9)
    producer = client.create_producer(topic, **BATCHING)
    sent: list[bytes] = []
    ids: list[pulsar.MessageId] = []

    def publish(count: int) -> None:
        values = [b"%d" % (len(sent) + number) for number in range(count)]
        sent.extend(values)
        for value in values:
            producer.send_async(value, lambda _result, at: ids.append(at))
        producer.flush()

    kept = KeptConnections()

    def values_of(first: int, last: int) -> list[bytes | None]:
        """Of the messages between two numbers; the first one is read from the topic's beginning."""
        start = EARLIEST if first == 0 else id_position(ids[first - 1]).after()
        end = id_position(ids[last - 1]).after()
        return [
            value
            for entry in read_entries(options, Range(topic, start, end), kept)
            for value in entry.messages.values()
        ]

    publish(250)
    assert values_of(0, 30) == sent[:30]
    assert values_of(30, 130) == sent[30:130]
    assert values_of(130, 250) == sent[130:250]
    publish(80)
    assert values_of(250, 330) == sent[250:330]
    assert len(opened) == 1
    publish(20)
    assert values_of(100, 200) == sent[100:200]
    assert len(opened) == 2
    opened[-1].close()  # by whomever
    publish(10)
    assert values_of(200, 360) == sent[200:360]
    assert len(opened) == 3
    assert values_of(200, 210) == sent[200:210]
    assert values_of(210, 220) == sent[210:220]
    assert len(opened) == 4
    monkeypatch.setattr(range_reader, "KEPT_S", 0.0)
    assert values_of(220, 230) == sent[220:230]
    assert len(opened) == 5
    kept.close()
