"""Backlog quota rules and namespace policies."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.config import BrokerConfig
from magnetar.broker.errors import ProducerBlockedQuotaExceededError, ProducerBlockedQuotaExceededException
from magnetar.broker.namespaces.policies import (
    CONSUMER_BACKLOG_EVICTION,
    PRODUCER_EXCEPTION,
    PRODUCER_REQUEST_HOLD,
    BacklogQuota,
    effective,
    new_document,
)
from magnetar.broker.namespaces.records import boundaries_text
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.topics import policy_rules


@pytest.mark.parametrize(
    ("limit", "size", "exceeded"),
    [(-1, 10**15, False), (0, 1, True), (0, 0, False), (100, 100, False), (100, 101, True)],
)
def test_size(limit: int, size: int, exceeded: bool) -> None:
    assert policy_rules.size_exceeded(BacklogQuota(limit_bytes=limit), size) is exceeded


@pytest.mark.parametrize(
    ("limit", "age", "exceeded"), [(-1, 1e9, False), (0, 1e9, False), (10, 10.0, False), (10, 10.1, True)]
)
def test_age(limit: int, age: float, exceeded: bool) -> None:
    assert policy_rules.age_exceeded(BacklogQuota(limit_time_s=limit), age) is exceeded


def test_each_policy_has_its_refusal() -> None:
    kinds = {
        policy: type(policy_rules.refusal(BacklogQuota(policy=policy), "t"))
        for policy in (PRODUCER_REQUEST_HOLD, PRODUCER_EXCEPTION, CONSUMER_BACKLOG_EVICTION)
    }
    assert kinds == {
        PRODUCER_REQUEST_HOLD: ProducerBlockedQuotaExceededError,
        PRODUCER_EXCEPTION: ProducerBlockedQuotaExceededException,
        CONSUMER_BACKLOG_EVICTION: type(None),
    }


@given(limit=st.integers(0, 10**12), size=st.integers(0, 10**12))
def test_eviction_goes_below_the_limit_but_not_far(limit: int, size: int) -> None:
    evicted = policy_rules.bytes_to_evict(BacklogQuota(limit_bytes=limit), size)
    assert 0 <= evicted <= size
    if size > limit:
        assert limit * 0.9 - 1 <= size - evicted <= limit


def test_defaults_come_from_the_broker_and_the_document_wins() -> None:
    config = BrokerConfig(BrokerSettings(ttl_default_s=7, max_producers_per_topic=3, default_retention_size_mb=5))
    document = new_document("standalone", 4)
    plain = effective(config, document)
    assert (plain.message_ttl_s, plain.max_producers_per_topic, plain.retention_size_mb) == (7, 3, 5)
    document |= {
        "message_ttl_in_seconds": 0,
        "max_producers_per_topic": 9,
        "retention_policies": {"retentionTimeInMinutes": 10, "retentionSizeInMB": -1},
        "deduplicationEnabled": True,
        "autoTopicCreationOverride": {
            "allowAutoTopicCreation": True,
            "topicType": "partitioned",
            "defaultNumPartitions": 6,
        },
    }
    changed = effective(config, document)
    assert (changed.message_ttl_s, changed.max_producers_per_topic) == (0, 9)
    assert (changed.retention_time_minutes, changed.retention_size_mb) == (10, -1)
    assert changed.deduplication
    assert (changed.auto_topic_creation_partitioned, changed.default_num_partitions) == (True, 6)


@pytest.mark.parametrize("field", ["limit", "limitSize"])
def test_quotas_in_the_old_and_the_new_form(field: str) -> None:
    """Pulsar before 2.8 wrote `limit`, as a string."""
    document = {"backlog_quota_map": {"destination_storage": {field: "1024", "policy": "producer_exception"}}}
    quota = effective(BrokerConfig(), document).size_quota
    assert quota == BacklogQuota(limit_bytes=1024, limit_time_s=-1, policy="producer_exception")


@pytest.mark.parametrize("count", [1, 2, 3, 4, 16, 1000])
def test_bundles_cover_the_hash_space(count: int) -> None:
    edges = [int(edge, 16) for edge in boundaries_text(count)]
    assert (edges[0], edges[-1], len(edges)) == (0, 0xFFFFFFFF, count + 1)
    sizes = [high - low for low, high in pairwise(edges)]
    assert min(sizes) > 0
    assert max(sizes) - min(sizes) <= count  # the last one takes what the division leaves, as in Pulsar
