"""Retention, time to live, and storage that is really given back."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pulsar

from magnetar.processes.directories import RESERVE_FILE
from magnetar.testing.server import ServerProcess
from tests.support.durable import acknowledge_durably
from tests.support.messages import drain, nothing_arrives, receive_all, send_all, take
from tests.support.types import Connect, StartServer
from tests.support.waiting import wait_until

MIB = 1024 * 1024
QUICK = {
    "retentionCheckIntervalInSeconds": 1,
    "managedLedgerMaxEntriesPerLedger": 100,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
}
KEEP_ALL = {"defaultRetentionTimeInMinutes": -1, "defaultRetentionSizeInMB": -1}


def payloads(count: int) -> list[bytes]:
    return [b"%d" % index for index in range(count)]


def read_from_earliest(client: pulsar.Client, topic: str) -> list[bytes]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(30_000).data())
    reader.close()
    return found


def disk_bytes(directory: Path) -> int:
    """What the files below a directory really occupy, without the few journal files that are kept to be used again and the reserve."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            if name.endswith(".spare") or name == RESERVE_FILE:
                continue
            try:
                total += os.stat(os.path.join(parent, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def test_acknowledged_ledgers_go_and_the_rest_stays(start_server: StartServer, connect: Connect, topic: str) -> None:
    client = connect(start_server(**QUICK).service_url)
    consumer = client.subscribe(topic, "sub")
    send_all(client.create_producer(topic), payloads(1000))
    assert receive_all(consumer, 550) == payloads(550)
    wait_until(lambda: read_from_earliest(client, topic)[0] == b"500", 60, "five ledgers to be deleted")
    assert read_from_earliest(client, topic) == payloads(1000)[500:]
    assert receive_all(consumer, 450) == payloads(1000)[550:]


def test_the_slowest_subscription_decides(start_server: StartServer, connect: Connect, topic: str) -> None:
    client = connect(start_server(**QUICK).service_url)
    quick, slow = (client.subscribe(topic, name) for name in ("quick", "slow"))
    send_all(client.create_producer(topic), payloads(500))
    take(quick, 500)
    take(slow, 120)
    wait_until(lambda: read_from_earliest(client, topic)[0] == b"100", 60)
    assert receive_all(slow, 380) == payloads(500)[120:]


def test_retention_keeps_what_is_acknowledged(start_server: StartServer, connect: Connect, topic: str) -> None:
    settings = QUICK | KEEP_ALL
    server = start_server(**settings)
    client = connect(server.service_url)
    consumer = client.subscribe(topic, "sub")
    send_all(client.create_producer(topic), payloads(500))
    take(consumer, 500)
    consumer.close()
    other = client.subscribe(f"{topic}-probe", "sub")  # a topic without a backlog goes through the same check
    assert nothing_arrives(other, for_ms=1500)
    server.restart()
    assert read_from_earliest(connect(server.service_url), topic) == payloads(500)


def test_retention_by_size_keeps_about_that_much(start_server: StartServer, connect: Connect, topic: str) -> None:
    client = connect(start_server(**QUICK, defaultRetentionTimeInMinutes=-1, defaultRetentionSizeInMB=1).service_url)
    consumer = client.subscribe(topic, "sub")
    body = random.Random(1).randbytes(5000)
    send_all(client.create_producer(topic), [body] * 1000)  # ledgers of 100 entries: 0.5 MiB each
    take(consumer, 1000)
    wait_until(lambda: len(read_from_earliest(client, topic)) <= 400, 60)
    assert len(read_from_earliest(client, topic)) * 5000 >= MIB * 0.9


def test_disk_space_is_freed(start_server: StartServer, connect: Connect, topic: str) -> None:
    """60 MiB are written and consumed: what the data directory occupies goes back to almost nothing."""
    server = start_server(
        retentionCheckIntervalInSeconds=1,
        managedLedgerMaxEntriesPerLedger=500,
        managedLedgerMinLedgerRolloverTimeMinutes=0,
        gcWaitTime=200,
        flushInterval=200,
        logSizeLimit=4 * MIB,
        journalMaxSizeMB=4,
        dbStorage_writeCacheMaxSizeMb=4,
    )
    client = connect(server.service_url)
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    body = random.Random(2).randbytes(30_000)
    peak = 0
    for _ in range(4):
        send_all(producer, [body] * 500)
        peak = max(peak, disk_bytes(server.data_dir))
    take(consumer, 2000)
    assert peak > 40 * MIB
    wait_until(lambda: disk_bytes(server.data_dir) < peak / 4, 60, "the disk space to come back")
    consumer.close()  # or it would be back first, and it is exclusive
    server.restart()
    client = connect(server.service_url)
    client.create_producer(topic).send(b"still works")
    assert receive_all(client.subscribe(topic, "sub"), 1) == [b"still works"]


def test_unconsumed_messages_expire(start_server: StartServer, connect: Connect, topic: str) -> None:
    """TTL: older than a second counts as consumed; what is newer stays."""
    client = connect(start_server(ttlDurationDefaultInSeconds=1, messageExpiryCheckIntervalInMinutes=0.005).service_url)
    client.subscribe(topic, "sub").close()
    producer = client.create_producer(topic)
    send_all(producer, payloads(50))

    def expired() -> bool:
        consumer = client.subscribe(topic, "sub")
        found = drain(consumer, ack=False)
        consumer.close()
        return not found

    wait_until(expired, 60)
    consumer = client.subscribe(topic, "sub")  # before the message, which is new for a second only
    producer.send(b"new")
    assert receive_all(consumer, 1) == [b"new"]


def test_without_a_time_to_live_nothing_expires(start_server: StartServer, connect: Connect, topic: str) -> None:
    client = connect(start_server(messageExpiryCheckIntervalInMinutes=0.005, **QUICK).service_url)
    client.subscribe(topic, "sub").close()
    send_all(client.create_producer(topic), payloads(300))
    assert nothing_arrives(client.subscribe(f"{topic}-probe", "sub"), for_ms=1500)
    assert receive_all(client.subscribe(topic, "sub"), 300) == payloads(300)


def test_a_subscription_created_during_trimming_reads_from_what_is_left(
    start_server: StartServer, connect: Connect, topic: str
) -> None:
    server: ServerProcess = start_server(**QUICK)
    client = connect(server.service_url)
    consumer = client.subscribe(topic, "sub")
    send_all(client.create_producer(topic), payloads(300))
    take(consumer, 249)
    consumer.close()
    acknowledge_durably(server, topic, "sub")
    wait_until(lambda: read_from_earliest(client, topic)[0] == b"200", 60)
    late = client.subscribe(topic, "late", initial_position=pulsar.InitialPosition.Earliest)
    assert receive_all(late, 100) == payloads(300)[200:]
    server.restart()
    assert receive_all(connect(server.service_url).subscribe(topic, "sub"), 50) == payloads(300)[250:]


def test_deduplication_is_nobody_who_has_consumed_a_topic(start_server: StartServer, connect: Connect) -> None:
    """Its cursor follows the last message, so a topic without subscriptions used to be emptied by the next check."""
    client = connect(start_server(**{**QUICK, "brokerDeduplicationEnabled": "true"}).service_url)
    send_all(client.create_producer("unread"), payloads(40))
    for _ in range(2):  # a whole round of checks lies between the first and the second time
        consumer = client.subscribe("read", "s")
        send_all(client.create_producer("read"), payloads(5))
        receive_all(consumer, 5)
        consumer.close()
        wait_until(lambda: read_from_earliest(client, "read") == [])
    assert read_from_earliest(client, "unread") == payloads(40)
