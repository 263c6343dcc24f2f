"""Topic over namespace over broker, for every policy of the table."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from magnetar.admin.policy_rows import POLICY_ROWS
from magnetar.broker.config import BrokerConfig
from magnetar.broker.namespaces.policies import EffectivePolicies, effective
from magnetar.broker.namespaces.policy_layers import LAYERS, Documents, merged
from magnetar.broker.settings.broker import BrokerSettings

CONFIG = BrokerConfig()


def namespace_document(name: str, value: Any) -> dict[str, Any]:
    layer = LAYERS[name]
    return {layer.namespace: {CONFIG.settings.cluster_name: value} if layer.by_cluster else value}


@pytest.mark.parametrize("name", [name for name, layer in LAYERS.items() if layer.topic and layer.namespace])
def test_the_topic_wins_over_the_namespace_and_that_over_the_broker(name: str) -> None:
    layer = LAYERS[name]
    namespace, topic = namespace_document(name, "of the namespace"), {layer.topic: "of the topic"}
    assert merged(name, Documents(CONFIG, namespace, topic)) == "of the topic"
    assert merged(name, Documents(CONFIG, namespace, {})) == "of the namespace"
    assert merged(name, Documents(CONFIG, namespace, {layer.topic: None})) == "of the namespace"
    assert merged(name, Documents(CONFIG, {}, {})) == layer.default(CONFIG.settings)


def test_every_layer_has_a_row() -> None:
    rows = {row.name: row for row in POLICY_ROWS}
    assert set(rows) == set(LAYERS)
    for name, row in rows.items():
        assert bool(row.topic) == bool(LAYERS[name].topic), name


def test_a_value_of_nothing_is_a_value() -> None:
    namespace = {"message_ttl_in_seconds": 60, "max_producers_per_topic": 3, "deduplicationEnabled": True}
    own = {"messageTTLInSeconds": 0, "maxProducerPerTopic": 0, "deduplicationEnabled": False}
    policies = effective(CONFIG, namespace, own)
    assert (policies.message_ttl_s, policies.max_producers_per_topic, policies.deduplication) == (0, 0, False)


@pytest.mark.parametrize("kind", ["destination_storage", "message_age"])
def test_quotas_are_merged_by_type(kind: str) -> None:
    other = "message_age" if kind == "destination_storage" else "destination_storage"
    quota = {"limitSize": 10, "limitTime": 20, "policy": "producer_exception"}
    lower = {"limitSize": 30, "limitTime": 40, "policy": "producer_request_hold"}
    policies = effective(CONFIG, {"backlog_quota_map": {kind: lower, other: lower}}, {"backLogQuotaMap": {kind: quota}})
    found = {"destination_storage": policies.size_quota, "message_age": policies.age_quota}
    assert (found[kind].limit_bytes, found[kind].policy) == (10, "producer_exception")
    assert (found[other].limit_bytes, found[other].policy) == (30, "producer_request_hold")


def test_broker_defaults_of_rates() -> None:
    settings = BrokerSettings(
        max_publish_rate_per_topic_messages=5,
        dispatch_throttling_rate_per_subscription_bytes=7,
        subscribe_throttling_rate_per_consumer=2,
    )
    config = BrokerConfig(settings)
    policies = effective(config, {})
    assert policies.publish_rate.messages == 5
    assert policies.dispatch_rate.unlimited
    assert policies.subscription_dispatch_rate.size_bytes == 7
    assert (policies.subscribe_rate.per_consumer, policies.subscribe_rate.period_s) == (2, 30)
    assert all(value is not None for value in (getattr(policies, field.name) for field in fields(EffectivePolicies)))
