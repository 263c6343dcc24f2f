"""Settings that change while the broker runs: kept in the metadata store, in effect on every broker of the cluster at once.

Pulsar's path and form: `/admin/configuration` holds one JSON object of texts by key. What stands there wins over the
configuration a broker was started with; a key that is taken out goes back to it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from magnetar.base.errors import BadVersionError, ConfigError
from magnetar.base.settings import Setting, parse, table_of
from magnetar.broker.config import BrokerConfig
from magnetar.broker.namespaces.errors import PreconditionFailedError
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.metadata import paths
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore

logger = logging.getLogger(__name__)

FIELDS: Mapping[str, str] = {
    "allowAutoTopicCreation": "allow_auto_topic_creation",
    "allowAutoTopicCreationType": "auto_topic_creation_partitioned",
    "defaultNumPartitions": "default_num_partitions",
    "allowAutoSubscriptionCreation": "allow_auto_subscription_creation",
    "maxProducersPerTopic": "max_producers_per_topic",
    "maxConsumersPerTopic": "max_consumers_per_topic",
    "maxConsumersPerSubscription": "max_consumers_per_subscription",
    "maxSubscriptionsPerTopic": "max_subscriptions_per_topic",
    "maxTopicsPerNamespace": "max_topics_per_namespace",
    "maxTenants": "max_tenants",
    "maxNamespacesPerTenant": "max_namespaces_per_tenant",
    "maxUnackedMessagesPerConsumer": "max_unacked_messages_per_consumer",
    "maxUnackedMessagesPerSubscription": "max_unacked_messages_per_subscription",
    "maxPublishRatePerTopicInMessages": "publish_rate_per_topic_messages",
    "maxPublishRatePerTopicInBytes": "publish_rate_per_topic_bytes",
    "dispatchThrottlingRatePerTopicInMsg": "dispatch_rate_per_topic_messages",
    "dispatchThrottlingRatePerTopicInByte": "dispatch_rate_per_topic_bytes",
    "dispatchThrottlingRatePerSubscriptionInMsg": "dispatch_rate_per_subscription_messages",
    "dispatchThrottlingRatePerSubscriptionInByte": "dispatch_rate_per_subscription_bytes",
    "subscribeThrottlingRatePerConsumer": "subscribe_rate_per_consumer",
    "subscribeRatePeriodPerConsumerInSecond": "subscribe_rate_period_s",
    "brokerDeleteInactiveTopicsEnabled": "delete_inactive_topics",
    "brokerDeleteInactiveTopicsMode": "inactive_topic_mode",
    "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": "inactive_topic_max_s",
    "subscriptionExpirationTimeMinutes": "subscription_expiration_minutes",
    "brokerDeduplicationEnabled": "deduplication_enabled",
    "brokerDeduplicationSnapshotIntervalSeconds": "deduplication_snapshot_interval_s",
    "delayedDeliveryEnabled": "delayed_delivery_enabled",
    "delayedDeliveryTickTimeMillis": "delayed_delivery_tick_ms",
    "ttlDurationDefaultInSeconds": "message_ttl_s",
    "defaultRetentionTimeInMinutes": "retention_time_minutes",
    "defaultRetentionSizeInMB": "retention_size_mb",
    "backlogQuotaDefaultLimitBytes": "backlog_quota_limit_bytes",
    "backlogQuotaDefaultLimitSecond": "backlog_quota_limit_time_s",
    "backlogQuotaDefaultRetentionPolicy": "backlog_quota_policy",
    "brokerServiceCompactionThresholdInBytes": "compaction_threshold_bytes",
    "schemaCompatibilityStrategy": "schema_compatibility_strategy",
    "isSchemaValidationEnforced": "schema_validation_enforced",
    "isAllowAutoUpdateSchemaEnabled": "allow_auto_update_schema",
}
"""Key to the field of `BrokerConfig`: what policies fall back on, so that one way makes all of them take hold."""


def parsed(key: str, text: str) -> Any:
    """The value of a field. Raises PreconditionFailedError for a key that cannot change, or a text it does not take."""
    if key not in FIELDS:
        raise PreconditionFailedError("Can't update non-dynamic configuration")
    row = _settings()[key]
    try:
        value = parse(row, text, "dynamic configuration")
    except ConfigError as error:
        raise PreconditionFailedError(f"Invalid dynamic-config value: {error}") from error
    return value == "partitioned" if key == "allowAutoTopicCreationType" else value


def _settings() -> dict[str, Setting]:
    return {row.key: row for row in table_of(BrokerSettings).values()}


class DynamicConfiguration:
    """Holds the one live `BrokerConfig`; nothing else writes to it."""

    def __init__(
        self, metadata: MetadataStore, config: BrokerConfig, applied: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """`applied` makes changed settings take hold of what is loaded already."""
        self._metadata = metadata
        self._config = config
        self._started_with = {field: getattr(config, field) for field in FIELDS.values()}
        self._texts: dict[str, str] = {}
        self.applied = applied

    @property
    def values(self) -> dict[str, str]:
        """Values that are set, by key."""
        return dict(self._texts)

    async def load(self) -> None:
        """Read what is stored and put it into effect."""
        texts = await self._stored()
        if texts == self._texts:
            return
        self._texts = texts
        fields = dict(self._started_with)
        for key, text in texts.items():
            try:
                fields[FIELDS[key]] = parsed(key, text)
            except (PreconditionFailedError, KeyError) as error:  # written by another version, or by hand
                logger.warning("dynamic configuration ignored key=%s error=%s", key, error)
        for field, value in fields.items():
            setattr(self._config, field, value)
        if self.applied is not None:
            await self.applied()

    async def put(self, key: str, text: str) -> None:
        """Raises PreconditionFailedError."""
        parsed(key, text)
        await self._change(lambda texts: texts.update({key: text.strip()}))

    async def remove(self, key: str) -> None:
        """Back to what the broker was started with. Raises PreconditionFailedError."""
        if key not in FIELDS:
            raise PreconditionFailedError("Can't delete non-dynamic configuration")
        await self._change(lambda texts: texts.pop(key, None))

    async def _change(self, change: Callable[[dict[str, str]], object]) -> None:
        """Set a value. It is in effect here when this returns; other brokers learn of it through the store's watch."""
        while True:
            node = await self._metadata.get(paths.DYNAMIC_CONFIGURATION_PATH)
            texts = _decode(node.value) if node else {}
            change(texts)
            version = node.version if node else MUST_NOT_EXIST
            try:
                await self._metadata.put(paths.DYNAMIC_CONFIGURATION_PATH, json.dumps(texts).encode(), version)
            except BadVersionError:
                continue
            break
        await self.load()

    async def _stored(self) -> dict[str, str]:
        node = await self._metadata.get(paths.DYNAMIC_CONFIGURATION_PATH)
        return _decode(node.value) if node else {}


def _decode(value: bytes) -> dict[str, str]:
    document = json.loads(value or b"{}")
    return {str(key): str(text) for key, text in document.items()} if isinstance(document, dict) else {}
