"""`/metrics`: well-formed, complete, and true to what happened."""

from __future__ import annotations

from collections.abc import Callable

import pulsar
import requests
from prometheus_client.parser import text_string_to_metric_families

from magnetar.admin.metrics.topics import SUBSCRIPTION_COLUMNS, TOPIC_COLUMNS
from magnetar.testing.server import ServerProcess
from tests.integration.admin.conftest import Api
from tests.support.messages import receive_all
from tests.support.waiting import wait_until

DASHBOARD_NAMES = (
    "pulsar_msg_backlog",
    "pulsar_storage_size",
    "pulsar_storage_backlog_size",
    "pulsar_rate_in",
    "pulsar_rate_out",
    "pulsar_throughput_in",
    "pulsar_throughput_out",
    "pulsar_topics_count",
    "pulsar_producers_count",
    "pulsar_consumers_count",
    "pulsar_subscriptions_count",
    "pulsar_storage_write_rate",
    "pulsar_storage_read_rate",
    "pulsar_storage_read_latency_count",
    "pulsar_storage_offloaded_size",
    "pulsar_storage_backlog_quota_limit",
    "pulsar_subscription_back_log",
    "pulsar_subscription_delayed",
    "pulsar_subscription_msg_rate_out",
    "pulsar_subscription_msg_throughput_out",
    "bookie_SERVER_STATUS",
    "bookkeeper_server_ADD_ENTRY_count",
    "bookkeeper_server_READ_ENTRY_count",
    "bookkeeper_server_ADD_ENTRY_REQUEST_count",
    "bookkeeper_server_READ_ENTRY_REQUEST_count",
    "bookie_journal_JOURNAL_ADD_ENTRY",
    "bookie_journal_JOURNAL_SYNC",
    "bookie_journal_JOURNAL_QUEUE_SIZE",
    "bookie_WRITE_BYTES",
    "bookie_READ_BYTES",
    "bookie_ledgers_count",
    "process_resident_memory_bytes",
    "process_cpu_seconds_total",
)

Sample = tuple[str, dict[str, str], float]


def scrape(server: ServerProcess) -> list[Sample]:
    response = requests.get(f"{server.http_url}/metrics", timeout=60)
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(response.text))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "a family must not appear twice"
    return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]


def value(samples: list[Sample], name: str, **labels: str) -> float:
    found = [sample[2] for sample in samples if sample[0] == name and labels.items() <= sample[1].items()]
    assert len(found) == 1, f"{name} {labels}: {found}"
    return found[0]


def test_names_of_the_dashboards_are_there(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s").close()
    client.create_producer(topic).send(b"x")
    names = {sample[0] for sample in scrape(server)}
    assert {*DASHBOARD_NAMES, *TOPIC_COLUMNS, *SUBSCRIPTION_COLUMNS} - names == set()


def test_numbers_are_those_of_the_topic(server: ServerProcess, client: pulsar.Client, api: Api, topic: str) -> None:
    odd = topic + '-"quoted"\\ ü'
    consumer = client.subscribe(odd, 'sub"s')
    producer = client.create_producer(odd)
    for _ in range(10):
        producer.send(b"x" * 600)
    receive_all(consumer, 4)
    about = {"cluster": "standalone", "namespace": "public/default", "topic": odd}
    wait_until(lambda: value(scrape(server), "pulsar_msg_backlog", topic=odd) == 6)
    samples = scrape(server)
    assert value(samples, "pulsar_in_messages_total", **about) == 10
    assert value(samples, "pulsar_producers_count", **about) == 1
    assert value(samples, "pulsar_subscription_back_log", **about, subscription='sub"s') == 6
    assert value(samples, "pulsar_entry_size_le_1_kb", **about) == 10
    assert value(samples, "pulsar_entry_size_count", **about) == 10
    latencies = [
        value(samples, name, **about)
        for name in TOPIC_COLUMNS
        if name.startswith("pulsar_storage_write_latency_") and not name.endswith(("_count", "_sum"))
    ]
    assert sum(latencies) == value(samples, "pulsar_storage_write_latency_count", **about) == 10
    assert value(samples, "pulsar_storage_size", **about) >= 6000
    assert 0 < value(samples, "pulsar_storage_backlog_size", **about) <= value(samples, "pulsar_storage_size", **about)
    assert value(samples, "bookie_SERVER_STATUS") == 1
    assert value(samples, "bookkeeper_server_ADD_ENTRY_count", success="true") >= 10
    assert value(samples, "pulsar_topics_count", namespace="public/default") >= 1
    assert value(samples, "bookie_journal_JOURNAL_SYNC_count", success="true") >= 10
    assert value(samples, "bookie_journal_JOURNAL_SYNC", success="true", quantile="0.99") > 0
    assert value(samples, "bookkeeper_server_ADD_ENTRY_REQUEST", success="true", quantile="1.0") > 0
    producer.close()
    consumer.close()


def test_a_slash_at_the_end_makes_no_difference(server: ServerProcess) -> None:
    assert requests.get(f"{server.http_url}/metrics/", timeout=60, allow_redirects=False).status_code == 200


def test_reads_are_counted_where_they_come_from(
    start_server: Callable[..., ServerProcess], connect: Callable[..., pulsar.Client]
) -> None:
    server = start_server()
    topic = "persistent://public/default/reads"
    client = connect(server.service_url)
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic)
    for _ in range(10):
        producer.send(b"x" * 1000)
    client.close()
    server.kill()
    server.start()
    assert value(scrape(server), "bookie_READ_BYTES") < 10_000
    client = connect(server.service_url)
    consumer = client.subscribe(topic, "s")
    receive_all(consumer, 10)
    samples = scrape(server)
    assert value(samples, "bookie_READ_BYTES") >= 10_000
    assert value(samples, "pulsar_storage_read_latency_count", topic=topic) >= 1
    producer = client.create_producer(topic)

    def read_rate() -> float:
        """The rate is of what is read between two samples, so something has to be read again and again."""
        producer.send(b"x")
        receive_all(consumer, 1)
        return value(scrape(server), "pulsar_storage_read_rate", topic=topic)

    wait_until(lambda: read_rate() > 0)
