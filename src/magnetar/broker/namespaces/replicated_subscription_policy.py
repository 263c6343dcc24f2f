"""A namespace's own settings of replicated subscriptions: its properties named as the broker's settings. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from magnetar.broker.config import ReplicatedSubscriptionsConfig

ENABLED: Final = "enableReplicatedSubscriptions"
INTERVAL: Final = "replicatedSubscriptionsSnapshotFrequencyMillis"
TIMEOUT: Final = "replicatedSubscriptionsSnapshotTimeoutSeconds"
CACHED: Final = "replicatedSubscriptionsSnapshotMaxCachedPerSubscription"
PARTIAL: Final = "replicatedSubscriptionsPartialSnapshotsAfterSeconds"


def replicated_subscriptions_of(
    config: ReplicatedSubscriptionsConfig, namespace: Mapping[str, Any]
) -> ReplicatedSubscriptionsConfig:
    """What holds in a namespace with this document. A property that is no number, or too small a one, counts as not set."""
    properties = namespace.get("properties") or {}
    if not properties:
        return config
    partial_s = _number(properties, PARTIAL, 0, -1)
    return replace(
        config,
        enabled=config.enabled and str(properties.get(ENABLED, "true")).lower() != "false",
        interval_ms=_number(properties, INTERVAL, 10, config.interval_ms),
        timeout_ms=_number(properties, TIMEOUT, 1, 0) * 1000 or config.timeout_ms,
        snapshots_max=_number(properties, CACHED, 3, config.snapshots_max),
        partial_after_ms=config.partial_after_ms if partial_s < 0 else partial_s * 1000 or None,
    )


def _number(properties: Mapping[str, Any], name: str, minimum: int, default: int) -> int:
    try:
        value = int(properties[name])
    except (KeyError, TypeError, ValueError):
        return default
    return value if value >= minimum else default
