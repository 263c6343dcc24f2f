"""TTL where publish times do not ascend: old messages of another cluster behind young ones."""

from __future__ import annotations

import time
from pathlib import Path

import pulsar

from tests.support.geo import NAMESPACE, receive, regions
from tests.support.waiting import wait_until

NAME = f"{NAMESPACE}/late"
TOPIC = f"persistent://{NAME}"
OLD = [f"old-{index}".encode() for index in range(20)]
YOUNG = [f"young-{index}".encode() for index in range(5)]


def test_old_messages_that_come_late_do_not_take_young_ones_with_them(tmp_path: Path) -> None:
    with regions(tmp_path, "a", "b", settings={"replicationStartAt": "earliest"}) as (a, b):
        b.admin("PUT", f"persistent/{NAME}")
        b.admin("POST", f"persistent/{NAME}/replication", ["b"])
        producer = b.client.create_producer(TOPIC, batching_enabled=False)
        for data in OLD:
            producer.send(data)
        published_s = time.monotonic()
        a.client.subscribe(TOPIC, "sub", initial_position=pulsar.InitialPosition.Earliest).close()
        wait_until(lambda: time.monotonic() > published_s + 6, 10, "the messages of b to be old")
        young = a.client.create_producer(TOPIC, batching_enabled=False)
        for data in YOUNG:
            young.send(data)
        sent_s = time.monotonic()
        b.admin("POST", f"persistent/{NAME}/replication", ["a", "b"])
        wait_until(lambda: a.stats(NAME)["msgInCounter"] == 25, 20, "all messages in a")
        a.admin("POST", f"persistent/{NAME}/subscription/sub/expireMessages/5")
        assert time.monotonic() < sent_s + 5, "too slow a machine to tell old from young"
        consumer = a.client.subscribe(TOPIC, "sub")
        received = receive(consumer, 25)
        assert [message.data() for message in received] == [*YOUNG, *OLD]
        wait_until(lambda: time.monotonic() > sent_s + 5, 10, "everything to be old")
        a.admin("POST", f"persistent/{NAME}/subscription/sub/expireMessages/5")
        assert a.stats(NAME)["subscriptions"]["sub"]["msgBacklog"] == 0
