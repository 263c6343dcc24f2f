"""Connections that break while nobody looks at them: whoever held one goes on over another, with nothing lost and nothing twice."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from magnetar.pipeline.connect.errors import ReadStalledError
from magnetar.pipeline.connect.offsets import EARLIEST, Position, Range
from magnetar.pipeline.connect.options import read_options
from magnetar.pipeline.connect.raw import entries as entries_module
from magnetar.pipeline.connect.raw.connection import RawConnectionError, connect_to
from magnetar.pipeline.connect.raw.entries import DamagedEntryError, Entry, RawEntries, read_entry
from magnetar.pipeline.connect.reading.columns import schema_for
from magnetar.pipeline.connect.reading.counting import Counter
from magnetar.pipeline.connect.stream import TopicStreamReader
from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.frames import Frame
from tests.support.topics import produce
from tests.support.waiting import wait_until

ESTABLISHED, CLOSED = 1, 7
"""States of TCP as Linux numbers them."""


def _state(held: socket.socket) -> int:
    return held.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def test_a_connection_that_the_broker_closed_during_a_slow_batch_is_replaced(
    start_server: Callable[..., ServerProcess], connect: Callable[..., pulsar.Client]
) -> None:
    """The counter of maxMessagesPerTrigger waits between batches with the broker's PING unread and its own PONG refused."""
    server = start_server(keepAliveIntervalSeconds=1)
    topic, client = "persistent://public/default/slow", connect(server.service_url)
    ids = produce(client, topic, [b"x"] * 10)
    options = read_options({"service.url": server.service_url, "topic": topic})
    counter = Counter(options, topic)
    at, count, _ = counter.take(Range(topic, EARLIEST, _behind(ids)), 4, None, True)
    assert count == 4
    source = counter._source
    assert isinstance(source, RawEntries)
    assert source._held is not None
    held = source._held._socket
    wait_until(lambda: _state(held) != ESTABLISHED, 60)
    held.send(b"\0")  # the broker's side is closed: it answers this with a reset, after which every send fails
    wait_until(lambda: _state(held) == CLOSED, 60)
    assert held.recv(1 << 16, socket.MSG_PEEK), "the PING is there"
    ids = produce(client, topic, [b"x"] * 10)
    assert counter.take(Range(topic, at, _behind(ids)), None, None, True)[:2] == (_behind(ids), 16)
    counter.close()


def _behind(ids: list[pulsar.MessageId]) -> Position:
    return Position(ids[-1].ledger_id(), ids[-1].entry_id() + 1)


def test_a_stream_waits_for_a_broker_that_is_started_again(
    start_server: Callable[..., ServerProcess], connect: Callable[..., pulsar.Client]
) -> None:
    server = start_server(defaultRetentionTimeInMinutes=60, defaultRetentionSizeInMB=-1)
    topic = "persistent://public/default/restarted"
    ids = produce(connect(server.service_url), topic, [b"x"] * 10)
    given = {"service.url": server.service_url, "topic": topic, "maxMessagesPerTrigger": "4"}
    quick = {"pulsar.client.operationTimeoutMs": "1000", "startingOffsets": "earliest"}
    reader = TopicStreamReader(read_options(given | quick), schema_for(["value"]))
    start = reader.initialOffset()
    first = reader.latestOffset(start, ReadMaxRows(4))
    server.kill()
    threading.Timer(3, server.start).start()  # longer than the client's own time-out
    second = reader.latestOffset(first, ReadMaxRows(4))
    assert second[topic] == Position(ids[8].ledger_id(), ids[8].entry_id()).document()
    assert len(reader.partitions(first, second)) == 1
    reader.stop()


def test_a_broker_that_stays_away_is_named(
    start_server: Callable[..., ServerProcess], connect: Callable[..., pulsar.Client]
) -> None:
    server = start_server()
    topic = "persistent://public/default/gone"
    produce(connect(server.service_url), topic, [b"x"])
    given = {"service.url": server.service_url, "topic": topic, "pollTimeoutMs": "10"}
    reader = TopicStreamReader(
        read_options(given | {"pulsar.client.operationTimeoutMs": "1000"}), schema_for(["value"])
    )
    start = reader.initialOffset()
    server.kill()
    with pytest.raises(ReadStalledError, match=rf"no broker answers at {server.service_url} within pollTimeoutMs=10"):
        reader.latestOffset(start, ReadAllAvailable())
    reader.stop()


def test_an_entry_that_the_connection_damaged_is_read_over_another_one(
    server: ServerProcess, client: pulsar.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [b"%d" % number for number in range(5)]
    produce(client, topic, values)
    connection = read_options({"service.url": server.service_url, "topic": topic}).connection
    damage = {2: 1}  # by entry: how often it comes damaged

    def read(received: Frame) -> tuple[Entry, int]:
        entry, permits = read_entry(received)
        if damage.get(entry.entry, 0):
            damage[entry.entry] -= 1
            raise DamagedEntryError(f"entry {entry.entry} does not match its checksum")
        return entry, permits

    source: RawEntries[Entry] = RawEntries(connection, topic, EARLIEST, read)
    found: list[bytes | None] = []
    while len(found) < 5:
        found += [value for entry in source.receive(1.0) for value in entry.messages.values()]
    assert found == values
    assert "does not match its checksum" in source.problem
    source.close()

    damage[2] = 2
    source = RawEntries(connection, topic, EARLIEST, read)
    monkeypatch.setattr(entries_module, "RECONNECT_WAIT_S", 0)

    def read_on() -> None:
        while True:
            source.receive(1.0)

    with pytest.raises(DamagedEntryError, match="entry 2"):
        read_on()
    source.close()


def test_credentials_that_cannot_be_read_now_are_read_again(server: ServerProcess, topic: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    given = {
        "service.url": server.service_url,
        "topic": topic,
        "pulsar.client.authPluginClassName": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "pulsar.client.authParams": f"file:{token}",
    }
    connection = read_options(given).connection
    source: RawEntries[Entry] = RawEntries(connection, topic, EARLIEST, read_entry)
    assert source.receive(0.1) == []
    assert "the credentials cannot be read" in source.problem
    with pytest.raises(RawConnectionError, match="credentials"):
        connect_to(connection, topic)
    token.write_text("t")
    assert source.has_more() is False
    source.close()
