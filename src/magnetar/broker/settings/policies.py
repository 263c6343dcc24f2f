"""The broker's defaults of policies that namespaces and topics may override: limits, rates, what is deleted when nobody uses it."""

from __future__ import annotations

from magnetar.base.limits import BUNDLES_MAX
from magnetar.base.settings import Settings, setting

INACTIVE_MODES = ("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up")


class PolicySettings(Settings):
    """A part of a broker's configuration."""

    # ---- Limits
    max_subscriptions_per_topic: int = setting(
        0, "maxSubscriptionsPerTopic", "Subscriptions a topic takes; 0: any number.", minimum=0, dynamic=True
    )
    max_topics_per_namespace: int = setting(
        0,
        "maxTopicsPerNamespace",
        "Persistent topics a namespace takes, partitions separately; 0: any number.",
        minimum=0,
        dynamic=True,
    )
    max_partitions_per_partitioned_topic: int = setting(
        0,
        "maxNumPartitionsPerPartitionedTopic",
        "Partitions that a topic can be given; 0: as many as the server takes.",
        minimum=0,
        dynamic=True,
    )
    default_number_of_namespace_bundles: int = setting(
        4,
        "defaultNumberOfNamespaceBundles",
        "Bundles of a namespace that is created without saying how many.",
        minimum=1,
        maximum=BUNDLES_MAX,
        dynamic=True,
    )
    subscription_types_enabled: str = setting(
        "Exclusive,Shared,Failover,Key_Shared",
        "subscriptionTypesEnabled",
        "Types of subscriptions that consumers may have, where no policy says it.",
        dynamic=True,
    )
    encryption_require_on_producer: bool = setting(
        False,
        "encryptionRequireOnProducer",
        "Refuse messages that their producer did not encrypt, whatever the namespace says.",
    )
    force_delete_namespace_allowed: bool = setting(
        True,
        "forceDeleteNamespaceAllowed",
        "A namespace can be deleted with all its topics.",
        dynamic=True,
        differs="Who may do it is decided by rights, not by a switch of the server.",
    )
    force_delete_tenant_allowed: bool = setting(
        True,
        "forceDeleteTenantAllowed",
        "A tenant can be deleted with all its namespaces.",
        dynamic=True,
        differs="Who may do it is decided by rights, not by a switch of the server.",
    )
    max_tenants: int = setting(0, "maxTenants", "Tenants that can be created; 0: any number.", minimum=0, dynamic=True)
    max_namespaces_per_tenant: int = setting(
        0, "maxNamespacesPerTenant", "Namespaces that a tenant can have; 0: any number.", minimum=0, dynamic=True
    )
    broker_delete_inactive_topics_enabled: bool = setting(
        False,
        "brokerDeleteInactiveTopicsEnabled",
        "Delete topics that nobody uses.",
        dynamic=True,
        differs="A topic that nobody uses for a minute is not yet one that nobody wants: data goes when somebody says so.",
    )
    broker_delete_inactive_topics_mode: str = setting(
        "delete_when_no_subscriptions",
        "brokerDeleteInactiveTopicsMode",
        "Which subscriptions keep a topic: any, or those with a backlog.",
        choices=INACTIVE_MODES,
        dynamic=True,
    )
    broker_delete_inactive_topics_frequency_s: float = setting(
        60.0,
        "brokerDeleteInactiveTopicsFrequencySeconds",
        "How often unused topics are looked for.",
        unit="s",
        minimum=0.1,
        dynamic=True,
    )
    broker_delete_inactive_topics_max_inactive_duration_s: int = setting(
        60,
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds",
        "How long a topic must have been unused.",
        unit="s",
        minimum=1,
        dynamic=True,
        differs="The value that Pulsar derives from brokerDeleteInactiveTopicsFrequencySeconds, said outright.",
    )
    subscription_expiration_minutes: float = setting(
        0.0,
        "subscriptionExpirationTimeMinutes",
        "Durable subscriptions without a consumer for so long are deleted with their backlog; 0: never.",
        unit="min",
        minimum=0,
        dynamic=True,
    )
    subscription_expiry_check_interval_minutes: float = setting(
        5.0, "subscriptionExpiryCheckIntervalInMinutes", "How often those are looked for.", unit="min", minimum=0.001
    )

    # ---- Rates
    max_publish_rate_per_topic_messages: int = setting(
        0,
        "maxPublishRatePerTopicInMessages",
        "Messages a second a topic takes; above it its producers' connections are not read. 0: any number.",
        minimum=0,
        dynamic=True,
    )
    max_publish_rate_per_topic_bytes: int = setting(
        0,
        "maxPublishRatePerTopicInBytes",
        "Bytes a second a topic takes; 0: any.",
        unit="bytes",
        minimum=0,
        dynamic=True,
    )
    dispatch_throttling_rate_per_topic_messages: int = setting(
        0,
        "dispatchThrottlingRatePerTopicInMsg",
        "Messages a second that all subscriptions of a topic get together; 0: any number.",
        minimum=0,
        dynamic=True,
    )
    dispatch_throttling_rate_per_topic_bytes: int = setting(
        0, "dispatchThrottlingRatePerTopicInByte", "The same in bytes; 0: any.", unit="bytes", minimum=0, dynamic=True
    )
    dispatch_throttling_rate_per_subscription_messages: int = setting(
        0,
        "dispatchThrottlingRatePerSubscriptionInMsg",
        "Messages a second that each subscription gets; 0: any number.",
        minimum=0,
        dynamic=True,
    )
    dispatch_throttling_rate_per_subscription_bytes: int = setting(
        0,
        "dispatchThrottlingRatePerSubscriptionInByte",
        "The same in bytes; 0: any.",
        unit="bytes",
        minimum=0,
        dynamic=True,
    )
    subscribe_throttling_rate_per_consumer: int = setting(
        0,
        "subscribeThrottlingRatePerConsumer",
        "How often one consumer may subscribe in subscribeRatePeriodPerConsumerInSecond; 0: as often as it likes.",
        minimum=0,
        dynamic=True,
    )
    subscribe_rate_period_per_consumer_s: int = setting(
        30,
        "subscribeRatePeriodPerConsumerInSecond",
        "Period of subscribeThrottlingRatePerConsumer.",
        unit="s",
        minimum=1,
        dynamic=True,
    )

    # ---- Snapshots of deduplication
    broker_deduplication_snapshot_interval_s: int = setting(
        120,
        "brokerDeduplicationSnapshotIntervalSeconds",
        "Age after which a snapshot of the sequence ids is renewed if there are new ones; 0: by entries only.",
        unit="s",
        minimum=0,
        dynamic=True,
    )
    broker_deduplication_snapshot_frequency_s: float = setting(
        120.0,
        "brokerDeduplicationSnapshotFrequencyInSeconds",
        "How often that age is looked at.",
        unit="s",
        minimum=0.1,
    )
