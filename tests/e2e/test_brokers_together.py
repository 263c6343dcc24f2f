"""What concerns several brokers at once: admin calls about topics of others, policies set anywhere, transactions over topics of two."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from functools import partial

import pulsar
import pytest

from magnetar.admin.client.client import AdminClient
from magnetar.testing.cluster import ClusterProcesses
from tests.support.brokers import STEADY, broker_names, get, owner_of, send, spread_out, unload
from tests.support.raw_transactions import RawTransactions, TransactionRefused, Txn
from tests.support.waiting import wait_until

Connect = Callable[..., pulsar.Client]

TOPICS_IN_ALL_BUNDLES = 16
"""So many names fall into every bundle of a namespace, most likely."""

_names = itertools.count()
PARTITIONS = 8


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    directory = tmp_path_factory.mktemp("cluster") / "c"
    with ClusterProcesses(directory, bookies=1, brokers=2, settings=STEADY) as processes:
        yield processes


@pytest.fixture
def spread(cluster: ClusterProcesses, connect: Connect) -> str:
    """A partitioned topic with a subscription and 80 messages, its partitions at both brokers."""
    topic = f"spread-{next(_names)}"
    send("PUT", f"{cluster.http_url}/admin/v2/persistent/public/default/{topic}/partitions", PARTITIONS)
    client = connect(cluster.service_urls)
    client.subscribe(topic, "s").close()
    parts = [f"{topic}-partition-{number}" for number in range(PARTITIONS)]
    spread_out(cluster, parts)  # before anything is counted: a partition that moves counts anew
    producer = client.create_producer(topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution)
    for number in range(80):
        producer.send(str(number).encode())
    client.close()  # else it would bring deleted topics back
    assert {owner_of(cluster, part) for part in parts} == set(broker_names(cluster))
    return topic


def bases(cluster: ClusterProcesses) -> list[str]:
    return [f"{cluster.broker(name)[1]}/admin/v2" for name in broker_names(cluster)]


def test_a_partitioned_topic_is_one_thing_through_any_broker(cluster: ClusterProcesses, spread: str) -> None:
    for base in bases(cluster):
        topic = f"{base}/persistent/public/default/{spread}"
        stats = get(f"{topic}/partitioned-stats")
        assert stats["msgInCounter"] == 80
        assert len(stats["partitions"]) == PARTITIONS
        assert sum(part["subscriptions"]["s"]["msgBacklog"] for part in stats["partitions"].values()) == 80
        assert len(get(f"{topic}/partitioned-internalStats")["partitions"]) == PARTITIONS
        assert len(get(f"{topic}/internal-info")["partitions"]) == PARTITIONS
        assert get(f"{topic}/subscriptions") == ["s"]
        for number in range(PARTITIONS):
            assert get(f"{topic}-partition-{number}/stats")["msgInCounter"] == 10
    first, second = (f"{base}/persistent/public/default/{spread}" for base in bases(cluster))
    send("PUT", f"{first}/subscription/late")
    assert sorted(get(f"{second}/subscriptions")) == ["late", "s"]
    send("POST", f"{second}/subscription/s/skip_all")
    assert get(f"{first}/partitioned-stats")["subscriptions"]["s"]["msgBacklog"] == 0
    send("DELETE", f"{first}/subscription/late")
    send("PUT", f"{second}/unload")
    assert get(f"{second}/subscriptions") == ["s"]
    send("POST", f"{first}/partitions", PARTITIONS + 2)
    assert get(f"{second}-partition-{PARTITIONS + 1}/subscriptions") == ["s"]
    send("DELETE", f"{second}/partitions?force=true")
    assert not [name for name in get(f"{bases(cluster)[0]}/persistent/public/default") if spread in name]


def test_a_namespace_is_one_thing_through_any_broker(cluster: ClusterProcesses, connect: Connect, spread: str) -> None:
    namespace = f"{bases(cluster)[0]}/namespaces/public/default"
    send("POST", f"{namespace}/clearBacklog")
    stats = get(f"{bases(cluster)[1]}/persistent/public/default/{spread}/partitioned-stats")
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0
    send("PUT", f"{namespace}/unload")
    client = connect(cluster.service_urls)
    names = [f"non-persistent://public/default/{spread}-live-{number}" for number in range(8)]
    producers = [client.create_producer(name) for name in names]
    for base in bases(cluster):
        assert set(names) <= set(get(f"{base}/non-persistent/public/default"))
    expression = re.compile(f"non-persistent://public/default/{spread}-live-.*")
    for name in broker_names(cluster):  # whichever broker is asked, a pattern finds the topics of both
        pattern = connect(cluster.broker(name)[0]).subscribe(
            expression, f"all-{name}", regex_subscription_mode=pulsar.RegexSubscriptionMode.NonPersistentOnly
        )
        for topic in names:  # what nobody has asked for yet is dropped
            wait_until(
                partial(_is_asked_for, bases(cluster)[0], topic, f"all-{name}"), 60, what=f"{topic} is asked for"
            )
        for number, producer in enumerate(producers):
            producer.send(str(number).encode())
        assert {int(pattern.receive(30_000).data()) for _ in producers} == set(range(len(producers)))
        pattern.close()
    for producer in producers:
        producer.close()
    send("POST", f"{namespace}/unsubscribe/s")
    assert get(f"{bases(cluster)[1]}/persistent/public/default/{spread}/subscriptions") == []


def _is_asked_for(base: str, topic: str, subscription: str) -> bool:
    """Through any broker: the one that does not serve the topic names the one that does."""
    stats = get(f"{base}/{topic.replace('://', '/')}/stats")
    return any(each["availablePermits"] for each in stats["subscriptions"][subscription]["consumers"])


def test_policies_set_at_one_broker_hold_at_the_other(cluster: ClusterProcesses, connect: Connect) -> None:
    topic = f"policed-{next(_names)}"
    client = connect(cluster.service_urls)
    producer = client.create_producer(topic)
    producer.send(b"x")
    first, second = broker_names(cluster)
    for owner, other in ((first, second), (second, first)):
        unload(cluster, topic, owner)
        base = f"{cluster.broker(other)[1]}/admin/v2"
        send("POST", f"{base}/persistent/public/default/{topic}/maxProducers", 1)

        def refused() -> bool:
            try:
                client.create_producer(topic).close()
            except pulsar.ProducerBusy:
                return True
            return False

        wait_until(refused, 60, what="the owner follows the policy")
        send("DELETE", f"{base}/persistent/public/default/{topic}/maxProducers")
        wait_until(lambda: not refused(), 60, what="the owner follows its removal")
    key = "maxConsumersPerTopic"
    send("POST", f"{bases(cluster)[0]}/brokers/configuration/{key}/7")
    wait_until(lambda: get(f"{bases(cluster)[1]}/brokers/configuration/values").get(key) == "7", 60, what="it is known")
    send("DELETE", f"{bases(cluster)[1]}/brokers/configuration/{key}")
    wait_until(lambda: key not in get(f"{bases(cluster)[0]}/brokers/configuration/values"), 60, what="it is gone")


ASSIGN = "transaction_coordinator_assign-partition-0"


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_over_topics_of_two_brokers(cluster: ClusterProcesses, connect: Connect, commit: bool) -> None:
    """It publishes at both and acknowledges at both; all of it counts, or nothing. Its coordinator's broker is one of them."""
    first, second = broker_names(cluster)
    found = get(f"{cluster.http_url}/lookup/v2/topic/persistent/pulsar/system/{ASSIGN}")["brokerUrl"]
    names = _topics_of(cluster, [first, second])
    client = connect(cluster.service_urls)
    coordinator = RawTransactions(_port(found))
    raws = [RawTransactions(_port(cluster.broker(name)[0])) for name in (first, second)]
    consumers = []
    for name, raw in zip(names, raws, strict=True):
        raw.producer(name)
        raw.subscribe(name, "input")
        consumers.append(client.subscribe(name, "output"))
        client.create_producer(name).send(b"plain")
    coordinator.connect_coordinator()
    txn = coordinator.begin()
    coordinator.add_partitions(txn, *names)
    for name, raw in zip(names, raws, strict=True):
        coordinator.add_subscription(txn, name, "input")
        raw.publish_in(txn, b"inside")
        raw.ack_in(txn, raw.message()[0].message.message_id)
    _seen_through_any_broker(cluster, txn, names, found)
    (coordinator.commit if commit else coordinator.abort)(txn)
    for name, consumer in zip(names, consumers, strict=True):
        assert consumer.receive(30_000).data() == b"plain"
        if commit:
            assert consumer.receive(30_000).data() == b"inside"
        stats = get(f"{bases(cluster)[0]}/{name.replace('://', '/')}/stats")
        assert stats["ongoingTxnCount"] == 0
    for raw in (coordinator, *raws):
        raw.close()


def _seen_through_any_broker(cluster: ClusterProcesses, txn: Txn, topics: list[str], coordinator_url: str) -> None:
    shown = f"({txn[0]},{txn[1]})"
    for name in broker_names(cluster):
        admin = AdminClient(cluster.broker(name)[1]).transactions
        known = admin.metadata(*txn)
        assert known.txn_id == shown
        assert set(known.produced_partitions) == set(known.acked_partitions) == set(topics)
        for topic in topics:
            start = admin.in_buffer_stats(topic, *txn).start_position
            assert start is not None
            assert known.produced_partitions[topic].start_position == start
        assert admin.coordinators()[txn[0]].broker_service_url == coordinator_url
        assert admin.stats_of(txn[0]).ongoing_txn_size == 1
        assert admin.coordinator_stats()[str(txn[0])].ongoing_txn_size == 1
        assert set(admin.slow(0)[shown].produced_partitions) == set(topics)
        assert "__transaction_log_0" in str(admin.coordinator_internal_stats(txn[0]).transaction_log_stats)


def test_an_administrator_aborts_at_any_broker(cluster: ClusterProcesses) -> None:
    found = get(f"{cluster.http_url}/lookup/v2/topic/persistent/pulsar/system/{ASSIGN}")["brokerUrl"]
    coordinator = RawTransactions(_port(found))
    coordinator.connect_coordinator()
    for name in broker_names(cluster):
        txn = coordinator.begin()
        AdminClient(cluster.broker(name)[1]).transactions.abort(*txn)
        with pytest.raises(TransactionRefused):
            coordinator.commit(txn)
    coordinator.close()


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


def _topics_of(cluster: ClusterProcesses, owners: list[str]) -> list[str]:
    """A new topic of each of these brokers, whatever the placement has made of the bundles: it may have given all of them to one."""
    names = [f"txn-{next(_names)}" for _ in range(TOPICS_IN_ALL_BUNDLES)]
    spread_out(cluster, names)
    found: dict[str, str] = {}

    def have_all() -> bool:
        found.update({owner_of(cluster, name): name for name in names})
        return set(owners) <= set(found)

    wait_until(have_all, 60, f"topics of {owners}")
    return [f"persistent://public/default/{found[owner]}" for owner in owners]
