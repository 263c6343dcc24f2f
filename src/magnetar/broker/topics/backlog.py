"""Backlog quota: how much unconsumed data a topic may hold, and what happens above it (pure rules; the topic acts).

producer_request_hold       producers are refused with a code on which clients hold their messages and come back
producer_exception          producers are refused with an error to the application
consumer_backlog_eviction   the slowest subscription's oldest backlog is dropped down to 90 % of the limit
"""

from __future__ import annotations

from magnetar.base.errors import BrokerError
from magnetar.broker.errors import ProducerBlockedQuotaExceededError, ProducerBlockedQuotaExceededException
from magnetar.broker.namespaces.policies import CONSUMER_BACKLOG_EVICTION, PRODUCER_REQUEST_HOLD, BacklogQuota

EVICTION_TARGET = 0.9
"""Eviction by size stops at this part of the limit, so that the next message does not evict again."""


def size_exceeded(quota: BacklogQuota, backlog_bytes: int) -> bool:
    return 0 <= quota.limit_bytes < backlog_bytes


def age_exceeded(quota: BacklogQuota, oldest_age_s: float) -> bool:
    return 0 < quota.limit_time_s < oldest_age_s


def refusal(quota: BacklogQuota, topic: str) -> BrokerError | None:
    """What producers are told while the quota is exceeded; None when the policy evicts instead."""
    if quota.policy == CONSUMER_BACKLOG_EVICTION:
        return None
    if quota.policy == PRODUCER_REQUEST_HOLD:
        return ProducerBlockedQuotaExceededError(
            f"Cannot create producer on topic with backlog quota exceeded: {topic}"
        )
    return ProducerBlockedQuotaExceededException(
        f"Cannot create producer on topic with backlog quota exceeded: {topic}"
    )


def bytes_to_evict(quota: BacklogQuota, backlog_bytes: int) -> int:
    return max(0, backlog_bytes - int(quota.limit_bytes * EVICTION_TARGET))
