"""The typed client against a real server: what it answers, what it raises, who it is."""

from __future__ import annotations

import threading

import pulsar
import pytest

from magnetar.admin.client import (
    AdminClient,
    AnswerError,
    AsyncAdminClient,
    BadRequestError,
    ConflictError,
    NotAllowedError,
    NotFoundError,
    PreconditionFailedError,
    RefusedError,
    UnprocessableError,
    UnreachableError,
)
from magnetar.admin.documents.cluster import ClusterData, FailureDomain, ResourceQuota
from magnetar.admin.documents.policies import BacklogQuota, Retention
from magnetar.admin.documents.topics import MessageId, SchemaPayload
from magnetar.testing.server import ServerProcess


def test_clusters_tenants_and_brokers(admin: AdminClient, server: ServerProcess) -> None:
    assert admin.clusters.get("standalone").broker_service_url == server.service_url
    admin.clusters.create("typed", ClusterData(service_url="http://x:1"))
    admin.clusters.set_failure_domain("typed", "rack", ["b1"])
    assert admin.clusters.failure_domains("typed") == {"rack": FailureDomain(brokers=["b1"])}
    admin.clusters.delete("typed")
    admin.tenants.create("typed", admin_roles=["me"], allowed_clusters=["standalone"])
    assert admin.tenants.get("typed").admin_roles == ["me"]
    admin.tenants.delete("typed")
    assert admin.brokers.health() == "ok"
    assert admin.brokers.leader().broker_id in admin.brokers.list()
    assert admin.broker_stats.load_report().num_topics >= 0
    assert admin.resource_quotas.get_default() == ResourceQuota()


def test_topics_and_subscriptions(admin: AdminClient, client: pulsar.Client, topic: str) -> None:
    admin.topics.create_partitioned(topic, 2, properties={"a": "b"})
    assert admin.topics.partitions(topic).properties == {"a": "b"}
    admin.subscriptions.create(topic, "sub", MessageId())
    producer = client.create_producer(topic)
    for number in range(4):
        producer.send(f"m{number}".encode())
    stats = admin.topics.partitioned_stats(topic, per_partition=True)
    assert (stats.msg_in_counter, len(stats.publishers), len(stats.partitions)) == (4, 2, 2)
    part = f"{topic}-partition-0"
    found = admin.subscriptions.peek(part, "sub")
    assert found.body.startswith(b"m")
    last = admin.topics.last_message_id(part)
    assert admin.topics.message_by_id(part, last.ledger_id, last.entry_id).body.startswith(b"m")
    admin.subscriptions.reset_to(part, "sub", last)
    assert admin.topics.stats(part).subscriptions["sub"].msg_backlog == 1
    assert admin.subscriptions.analyze_backlog(part, "sub").entries == 1
    admin.subscriptions.clear_backlog(topic, "sub")
    assert admin.topics.internal_stats(part).cursors["sub"].state == "Open"
    producer.close()  # or it would come back and make its partition anew
    admin.topics.delete_partitioned(topic, force=True)
    with pytest.raises(NotFoundError) as caught:
        admin.topics.stats(part)
    assert (caught.value.status, caught.value.reason) == (404, f"Topic {part} does not exist")


def test_policies(admin: AdminClient, topic: str, namespace: str) -> None:
    assert admin.namespace_policies.retention.get(namespace) is None
    kept = Retention(retention_time_in_minutes=10, retention_size_in_mb=-1)
    admin.namespace_policies.retention.set(namespace, kept)
    assert admin.namespace_policies.retention.get(namespace) == kept
    admin.namespace_policies.retention.remove(namespace)
    admin.topics.create(topic)
    admin.topic_policies.message_ttl.set(topic, 60)
    assert admin.topic_policies.message_ttl.get(topic) == 60
    assert admin.topic_policies.max_producers.get(topic) is None
    assert admin.topic_policies.max_producers.get(topic, applied=True) == 0
    admin.topic_policies.schema_compatibility.set(topic, "FORWARD")
    quota = BacklogQuota(limit_size=10, policy="producer_exception")
    admin.namespaces.set_backlog_quota(namespace, quota)
    assert admin.namespaces.backlog_quotas(namespace)["destination_storage"].limit_size == 10
    assert admin.namespaces.policies(namespace).bundles.num_bundles == 4


def test_schemas(admin: AdminClient, topic: str) -> None:
    text = SchemaPayload(type="STRING", schema="", properties={})
    assert admin.schemas.upload(topic, text) == 0
    assert admin.schemas.get(topic).type == "STRING"
    assert [info.version for info in admin.schemas.list(topic)] == [0]
    assert admin.schemas.version_of(topic, text) == 0
    with pytest.raises(UnprocessableError):
        admin.schemas.upload(topic, SchemaPayload(type="AVRO", schema="no schema"))
    admin.schemas.delete(topic, force=True)


def test_what_is_refused_has_a_class_of_its_own(admin: AdminClient, topic: str) -> None:
    admin.topics.create(topic)
    with pytest.raises(ConflictError):
        admin.topics.create(topic)
    with pytest.raises(PreconditionFailedError):
        admin.tenants.create("t", allowed_clusters=["nowhere"])
    with pytest.raises(NotAllowedError):
        admin.topics.terminate_partitions(topic)
    with pytest.raises(BadRequestError):
        admin.namespaces.grant("public/default", "me", ["everything"])
    with pytest.raises(RefusedError, match=r"Tenant does not exist \(HTTP 404\)"):
        admin.tenants.get("nobody")


def test_names_are_quoted(admin: AdminClient) -> None:
    strange = "persistent://public/default/a b?c=d&e%2Ff#g"
    admin.topics.create(strange)
    assert strange in admin.topics.list("public/default")
    admin.subscriptions.create(strange, "s/u b", MessageId())
    assert admin.subscriptions.list(strange) == ["s/u b"]
    admin.topics.delete(strange, force=True)


def test_a_server_that_comes_back_is_found_again(start_server: object) -> None:
    server: ServerProcess = start_server()  # type: ignore[operator]  # the fixture's own type is in its conftest
    with AdminClient(server.http_url) as admin:
        admin.tenants.list()
        server.restart()
        assert admin.tenants.list()[0] == "public"
        server.kill()
        with pytest.raises(UnreachableError):
            admin.tenants.list()
        with pytest.raises(UnreachableError):
            admin.tenants.create("t", allowed_clusters=["standalone"])


def test_other_addresses(server: ServerProcess) -> None:
    with pytest.raises(ValueError, match="http://HOST:PORT"):
        AdminClient("localhost:8080")
    with AdminClient(server.http_url + "/nowhere") as admin, pytest.raises(NotFoundError):
        admin.tenants.list()
    with AdminClient(server.http_url) as admin:
        answer = admin.call("GET", "/metrics", {})
        with pytest.raises(AnswerError):
            answer.json()


def test_threads_share_a_client(admin: AdminClient) -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(len(admin.clusters.list()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [found[0]] * 8


async def test_the_same_for_asyncio(server: ServerProcess, topic: str) -> None:
    async with AsyncAdminClient(server.http_url) as admin:
        await admin.topics.create(topic)
        assert topic in await admin.run(lambda sync: sync.topics.list("public/default"))
        await admin.topic_policies.message_ttl.set(topic, 5)
        assert await admin.topic_policies.message_ttl.get(topic) == 5
        with pytest.raises(ConflictError):
            await admin.topics.create(topic)
