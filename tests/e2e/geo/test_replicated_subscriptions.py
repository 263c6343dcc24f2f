"""Replicated subscriptions among three real clusters over slow links: a failover skips nothing and repeats little."""

from __future__ import annotations

import time
from pathlib import Path

import pulsar

from tests.e2e.geo.failover_runs import busy_s
from tests.support.geo import receive
from tests.support.geo_links import far_regions
from tests.support.replicated_topic import (
    INTERVAL_MS,
    QUICK,
    TOPIC,
    URL,
    backlog,
    entries,
    publish,
    rest,
    settled,
    subscribe,
    touch,
)
from tests.support.waiting import wait_until


def test_two_failovers_skip_nothing_and_repeat_nothing_that_a_snapshot_has_covered(tmp_path: Path) -> None:
    with far_regions(tmp_path, "a", "b", "c", settings=QUICK) as (_, [a, b, c]):
        regions = [a, b, c]
        touch(*regions)
        seen: set[bytes] = set()
        for here, following in ((a, b), (b, c)):
            consumer = subscribe(here)
            sent = publish(regions, 50, f"until {following.name}")
            seen |= {message.data() for message in receive(consumer, len(sent))}
            assert seen >= sent
            for other in regions:
                if other is not here:
                    wait_until(settled(other), 60, f"the cursor in {other.name}")
            assert here.stats(TOPIC)["subscriptions"]["sub"]["isReplicated"]
            consumer.close()
            here.disconnect_client()
        late = publish([a, c], 5, "late")
        consumer = subscribe(c)
        assert {message.data() for message in receive(consumer, len(late))} == late
        assert rest(c, consumer) == []


def test_what_was_consumed_since_the_last_snapshot_is_repeated_after_a_crash(tmp_path: Path) -> None:
    """The bound: what was acknowledged within the interval and the time of two rounds over the links."""
    with far_regions(tmp_path, "a", "b", "c", settings=QUICK) as (_, [a, b, c]):
        touch(a, b, c)
        consumer = subscribe(a)
        producer = a.client.create_producer(URL, batching_enabled=False)
        acknowledged: dict[bytes, float] = {}
        bound_s = INTERVAL_MS / 1000 * 2 + 4 * 0.1 + 0.5 + busy_s()
        until = time.monotonic() + max(6.0, 2.5 * bound_s)
        number = 0
        while time.monotonic() < until:
            producer.send(f"m{number}".encode())
            number += 1
            message = consumer.receive(30_000)
            consumer.acknowledge(message)
            acknowledged[message.data()] = time.monotonic()
        a.wait_drained(TOPIC, "b", "c")
        a.server.kill()
        crashed_s = time.monotonic()
        time.sleep(0.5)  # what is on the links arrives
        given = rest(b, subscribe(b))
        assert set(given) | acknowledged.keys() == {f"m{each}".encode() for each in range(number)}
        repeated = [data for data in given if data in acknowledged]
        assert len(repeated) < number / 2
        assert all(crashed_s - acknowledged[data] < bound_s for data in repeated), (
            len(repeated),
            max(crashed_s - acknowledged[data] for data in repeated),
        )


def test_no_backlog_counts_markers_and_nothing_is_taken_while_nobody_publishes(tmp_path: Path) -> None:
    with far_regions(tmp_path, "a", "b", "c", settings=QUICK) as (_, [a, b, c]):
        touch(a, b, c)
        a.client.subscribe(URL, "idle", initial_position=pulsar.InitialPosition.Earliest).close()
        consumer = subscribe(a)
        sent = publish([a, b, c], 10, "m")
        receive(consumer, len(sent))
        for region in (a, b, c):
            wait_until(settled(region), 60, f"the cursor in {region.name}")
        stats = a.stats(TOPIC)
        assert stats["subscriptions"]["idle"]["msgBacklog"] == 30
        assert stats["msgInCounter"] == 30
        reader = a.client.create_reader(URL, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(30_000).data())
        assert set(found) == sent
        quiet: list[list[int]] = []

        def silent() -> bool:
            time.sleep(2 * INTERVAL_MS / 1000)
            quiet.append([entries(region) for region in (a, b, c)])
            return len(quiet) > 2 and quiet[-1] == quiet[-2] == quiet[-3]

        wait_until(silent, 60, "an end of the snapshots")
        before = quiet[-1]
        time.sleep(8 * INTERVAL_MS / 1000)
        assert [entries(region) for region in (a, b, c)] == before


def test_what_a_shared_subscription_acknowledged_out_of_order_is_not_repeated(tmp_path: Path) -> None:
    """One message is stuck: everything behind it was consumed, in a, wherever it was published."""
    with far_regions(tmp_path, "a", "b", "c", settings=QUICK) as (_, [a, b, c]):
        regions = [a, b, c]
        touch(*regions)
        consumer = subscribe(a, kind=pulsar.ConsumerType.Shared)
        first = publish(regions, 3, "first")
        receive(consumer, len(first))
        wait_until(settled(b), 60, "the subscription in b")
        sent = publish(regions, 40, "second")
        stuck = consumer.receive(30_000)
        others = {message.data() for message in receive(consumer, len(sent) - 1)}
        assert others == sent - {stuck.data()}
        for region in (b, c):
            wait_until(lambda region=region: backlog(region) == 1, 60, f"all but one are consumed in {region.name}")
        consumer.close()
        a.server.kill()
        assert rest(b, subscribe(b, kind=pulsar.ConsumerType.Shared)) == [stuck.data()]


def test_messages_that_were_kept_from_the_consumers_cluster_are_consumed_after_the_failover(tmp_path: Path) -> None:
    """`replicate_to`: what a never had lies before positions that a's consumer has passed, and is not skipped."""
    with far_regions(tmp_path, "a", "b", "c", settings=QUICK) as (_, [a, b, c]):
        regions = [a, b, c]
        touch(*regions)
        consumer = subscribe(a)
        first = publish(regions, 3, "first")
        receive(consumer, len(first))
        wait_until(settled(b), 60, "the subscription in b")
        private = b.client.create_producer(URL)
        private.send(b"b and c only", replication_clusters=["c"])
        private.send(b"b only", disable_replication=True)
        second = publish(regions, 10, "second")
        receive(consumer, len(second))
        wait_until(lambda: backlog(b) == 2, 60, "the rest is consumed in b")
        wait_until(lambda: backlog(c) == 1, 60, "the rest is consumed in c")
        third = publish(regions, 10, "third")
        receive(consumer, len(third))
        wait_until(lambda: backlog(b) == 2, 60, "the rest is consumed in b")
        consumer.close()
        assert rest(b, subscribe(b)) == [b"b and c only", b"b only"]
        wait_until(settled(c), 60, "what b has consumed is consumed in c")
