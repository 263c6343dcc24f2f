"""TTL where publish times do not ascend: old messages of another cluster behind young ones."""

from __future__ import annotations

import time
from pathlib import Path

import pulsar

from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand
from tests.support.geo import NAMESPACE, receive, regions
from tests.support.raw import RawClient
from tests.support.waiting import wait_until

NAME = f"{NAMESPACE}/late"
TOPIC = f"persistent://{NAME}"
OLD = [f"old-{index}".encode() for index in range(20)]
YOUNG = [f"young-{index}".encode() for index in range(5)]
AGE_S = 3600


def test_old_messages_that_come_late_do_not_take_young_ones_with_them(tmp_path: Path) -> None:
    with regions(tmp_path, "a", "b", settings={"replicationStartAt": "earliest"}) as (a, b):
        b.admin("PUT", f"persistent/{NAME}")
        b.admin("POST", f"persistent/{NAME}/replication", ["b"])
        with RawClient(b.server.port) as producer:
            producer.connect()
            assert producer.producer(TOPIC).type == BaseCommand.PRODUCER_SUCCESS
            for number, data in enumerate(OLD):
                published_ms = int((time.time() - 2 * AGE_S) * 1000)
                assert producer.publish(data, number, publish_time=published_ms).type == BaseCommand.SEND_RECEIPT
        a.client.subscribe(TOPIC, "sub", initial_position=pulsar.InitialPosition.Earliest).close()
        young = a.client.create_producer(TOPIC, batching_enabled=False)
        for data in YOUNG:
            young.send(data)
        sent_s = time.monotonic()
        b.admin("POST", f"persistent/{NAME}/replication", ["a", "b"])
        wait_until(lambda: a.stats(NAME)["msgInCounter"] == 25, what="all messages in a")
        a.admin("POST", f"persistent/{NAME}/subscription/sub/expireMessages/{AGE_S}")
        consumer = a.client.subscribe(TOPIC, "sub")
        received = receive(consumer, 25)
        assert [message.data() for message in received] == [*YOUNG, *OLD]
        wait_until(lambda: time.monotonic() > sent_s + 2, what="everything to be old")
        a.admin("POST", f"persistent/{NAME}/subscription/sub/expireMessages/1")
        assert a.stats(NAME)["subscriptions"]["sub"]["msgBacklog"] == 0
