"""Bugs that hurt the peers most, as far as they show end to end (docs/explanation/reliability.md names the row of each)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from tests.support.brokers import get
from tests.support.in_process import FaultyDisk, InProcessServer
from tests.support.messages import drain, subscribe_next
from tests.support.proxy import CuttingProxy
from tests.support.traffic import key_of, read_log
from tests.support.waiting import wait_until

StartServer = Callable[..., ServerProcess]
Connect = Callable[..., pulsar.Client]


# ---- 11: a reset stored the read position as the mark-delete


@pytest.mark.parametrize("how", ["new", "seek to latest", "seek to an id"])
def test_the_first_message_behind_a_position_survives_a_crash(
    start_server: StartServer, connect: Connect, how: str
) -> None:
    server = start_server()
    client = connect(server.service_url)
    producer = client.create_producer("reset")
    if how != "new":
        earlier = [producer.send(b"old %d" % number) for number in range(5)]
    consumer = client.subscribe("reset", "sub")
    if how == "seek to latest":
        consumer.seek(pulsar.MessageId.latest)
    elif how == "seek to an id":
        consumer.seek(earlier[-1])
    producer.send(b"the one")
    server.restart()
    expected = [b"old 4", b"the one"] if how == "seek to an id" else [b"the one"]
    consumer.close()
    again = subscribe_next(connect(server.service_url), "reset", "sub", start_message_id_inclusive=True)
    assert [message.data() for message in drain(again, at_least=len(expected))] == expected


# ---- 12: a trimmed ledger under a cursor that was just created


def test_subscriptions_created_while_ledgers_are_trimmed_miss_nothing(
    start_server: StartServer, connect: Connect
) -> None:
    """Each new subscription starts at the earliest message there is, and gets every one from there on without a gap."""
    server = start_server(
        managedLedgerMaxEntriesPerLedger=20,
        managedLedgerMinLedgerRolloverTimeMinutes=0,
        retentionCheckIntervalInSeconds=1,
    )
    client = connect(server.service_url)
    producer = client.create_producer("trim", block_if_queue_full=True)
    drainer = client.subscribe("trim", "drainer", initial_position=pulsar.InitialPosition.Earliest)
    over = threading.Event()

    def produce() -> None:
        number = 0
        while not over.wait(0.002):
            producer.send_async(b"%d" % number, lambda result, message_id: None)
            number += 1

    def consume() -> None:
        while not over.is_set():
            try:
                drainer.acknowledge_cumulative(drainer.receive(100))
            except pulsar.Timeout:
                continue

    threads = [threading.Thread(target=work, daemon=True) for work in (produce, consume)]
    for thread in threads:
        thread.start()
    starts: list[int] = []
    until_s = time.monotonic() + 60
    while len(starts) < 12 or (starts[-1] == 0 and time.monotonic() < until_s):
        number = len(starts)
        time.sleep(0.3)
        consumer = client.subscribe("trim", f"late-{number}", initial_position=pulsar.InitialPosition.Earliest)
        payloads = [int(consumer.receive(30_000).data()) for _ in range(30)]
        assert payloads == list(range(payloads[0], payloads[0] + 30))
        starts.append(payloads[0])
        consumer.unsubscribe()
    over.set()
    for thread in threads:
        thread.join(10)
    assert starts[-1] > 0, "nothing was trimmed: the test did not see what it is about"
    assert "Traceback" not in server.log()


# ---- 14: holes dropped beyond a limit


def test_ten_thousand_holes_survive_a_crash(start_server: StartServer, connect: Connect) -> None:
    server = start_server()
    client = connect(server.service_url)
    producer = client.create_producer("holes", block_if_queue_full=True, batching_enabled=False)
    consumer = client.subscribe("holes", "sub", pulsar.ConsumerType.Shared, receiver_queue_size=5000)
    count = 20_000
    for number in range(count):
        producer.send_async(b"%d" % number, lambda result, message_id: None)
    producer.flush()
    for _ in range(count):
        message = consumer.receive(30_000)
        if int(message.data()) % 2:
            consumer.acknowledge(message)
    stats = f"{server.http_url}/admin/v2/persistent/public/default/holes/stats"
    wait_until(lambda: get(stats)["subscriptions"]["sub"]["msgBacklog"] == count // 2, what="all have arrived")
    time.sleep(1.2)  # what cursors batch is stored by then: that bound is the promise
    server.restart()
    consumer.close()
    again = connect(server.service_url).subscribe("holes", "sub", pulsar.ConsumerType.Shared, receiver_queue_size=5000)
    got = [int(again.receive(30_000).data()) for _ in range(count // 2)]
    assert sorted(got) == list(range(0, count, 2))
    with pytest.raises(pulsar.Timeout):
        again.receive(500)


# ---- 17, 18: deduplication that loses the retry of a failed write, or its watermark


def test_the_retry_of_a_failed_write_is_stored_once(tmp_path: Path) -> None:
    """The watermark of what was pushed must fall back to that of what is stored."""
    disk = FaultyDisk()
    with InProcessServer(tmp_path / "data", disk, broker_deduplication_enabled=True) as server:
        client = pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        producer = client.create_producer("retry", producer_name="p", send_timeout_millis=0)
        # Before its first receipt the official client restarts its numbering when it reconnects, and repeats ids in use.
        producer.send(b"0")
        results: list[pulsar.Result] = []
        for number in range(1, 60):
            if number == 20:
                disk.full = True
            producer.send_async(b"%d" % number, lambda result, message_id: results.append(result))
            if number == 40:
                time.sleep(0.5)
                disk.full = False
                server.check_disk()
        wait_until(lambda: len(results) == 59, 60)
        assert set(results) == {pulsar.Result.Ok}
        assert [int(payload) for payload in read_log(client, "retry").payloads] == list(range(60))
        client.close()


# ---- 24: state advanced before it was confirmed, seen by cutting the connection at every byte


CUTS = [*range(1, 60, 12), 64, 80, 97, 128, 150, 200, 300, 700, 1500, 4000, 9000]
ACK_GROUPING_S = 0.15
"""The official client keeps acknowledgements back for 0.1 s, and loses those when its connection ends."""


@pytest.mark.parametrize("direction", ["up", "down"])
def test_cut_at_any_byte_nothing_is_lost_doubled_or_stuck(
    start_server: StartServer, connect: Connect, direction: str
) -> None:
    """In the handshake, in a lookup, in a SEND, in a receipt, in an ACK: the client comes back and all is as if nothing was."""
    server = start_server(brokerDeduplicationEnabled="true", advertisedAddress="127.0.0.2")
    proxy = CuttingProxy(server.port)
    client = connect(server.service_url)
    topic = "cut"
    consumer = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, producer_name="p", send_timeout_millis=0, block_if_queue_full=True)
    stored: dict[int, tuple[int, int, int]] = {}
    # as above: the official client numbers from the start again when it reconnects before its first receipt
    stored[0] = key_of(producer.send(b"0"))
    received: list[int] = []
    sent = 1
    for size_bytes in CUTS:
        proxy.cut_after(direction, size_bytes)
        for _ in range(30):
            producer.send_async(b"%d" % sent, _receipt(stored, sent))
            sent += 1
        deadline = time.monotonic() + 60
        while (len(stored) < sent or len(set(received)) < sent) and time.monotonic() < deadline:
            try:
                message = consumer.receive(50)
            except pulsar.Timeout:
                continue
            received.append(int(message.data()))
            consumer.acknowledge(message)
        assert len(stored) == sent, f"receipts are missing after a cut at {size_bytes}"
        assert set(received) == set(range(sent)), f"messages are missing after a cut at {size_bytes}"
        assert not proxy.armed
        time.sleep(ACK_GROUPING_S)
    print(f"\n{proxy.cuts} cuts, {sent} messages, {len(received) - sent} deliveries again")
    assert len(received) - sent <= sent, "acknowledgements do not arrive"
    log = read_log(connect(server.service_url), topic)
    assert [int(payload) for payload in log.payloads] == list(range(sent))
    proxy.close()


def _receipt(stored: dict[int, tuple[int, int, int]], number: int) -> Callable[[pulsar.Result, pulsar.MessageId], None]:
    def done(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
        assert result == pulsar.Result.Ok
        stored[number] = key_of(message_id)

    return done
