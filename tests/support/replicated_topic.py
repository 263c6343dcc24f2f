"""One topic with replicated subscriptions in several regions, through the official client."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pulsar

from tests.support.geo import NAMESPACE, Region

TOPIC = f"{NAMESPACE}/orders"
URL = f"persistent://{TOPIC}"
INTERVAL_MS = 250
QUICK = {"replicatedSubscriptionsSnapshotFrequencyMillis": INTERVAL_MS}


def subscribe(region: Region, name: str = "sub", kind: Any = pulsar.ConsumerType.Exclusive) -> pulsar.Consumer:
    return region.client.subscribe(
        URL,
        name,
        consumer_type=kind,
        initial_position=pulsar.InitialPosition.Earliest,
        replicate_subscription_state_enabled=True,
    )


def touch(*regions: Region) -> None:
    """The topic is loaded everywhere and its replicators are connected."""
    for region in regions:
        region.client.create_producer(URL).close()
    for region in regions:
        region.wait_connected(TOPIC, *(other.name for other in regions if other is not region))


def publish(regions: list[Region], count: int, label: str) -> set[bytes]:
    """So many messages in each."""
    sent = set()
    for region in regions:
        producer = region.client.create_producer(URL, batching_enabled=False)
        for number in range(count):
            data = f"{label}-{region.name}-{number}".encode()
            producer.send_async(data, lambda result, _: None)
            sent.add(data)
        producer.flush()
        producer.close()
    return sent


def backlog(region: Region, name: str = "sub") -> int | None:
    subscription = region.stats(TOPIC)["subscriptions"].get(name)
    return None if subscription is None else subscription["msgBacklog"]


def rest(region: Region, consumer: pulsar.Consumer, for_s: float = 2.0) -> list[bytes]:
    """What comes until nothing is left and nothing has come for a while."""
    found = []
    until_s = time.monotonic() + 60
    while True:
        try:
            message = consumer.receive(timeout_millis=int(for_s * 1000))
        except pulsar.Timeout:
            if backlog(region) == 0 or time.monotonic() > until_s:
                return found
            continue
        consumer.acknowledge(message)
        found.append(message.data())


def settled(region: Region, name: str = "sub") -> Callable[[], bool]:
    return lambda: backlog(region, name) == 0


def entries(region: Region) -> int:
    found: int = region.admin("GET", f"persistent/{TOPIC}/internalStats")["numberOfEntries"]
    return found
