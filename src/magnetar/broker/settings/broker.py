"""The settings of a broker, in a process of its own or inside `magnetar standalone`: Pulsar's key names."""

from __future__ import annotations

from magnetar.base.errors import ConfigError, OpenDoorError
from magnetar.base.limits import HTTP_CONNECTIONS_MAX
from magnetar.base.listen_settings import HttpListenSettings, is_loopback
from magnetar.base.settings import setting
from magnetar.broker.settings.load_balance import LoadBalanceSettings
from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.settings.replication import ReplicatedSubscriptionSettings, ReplicationSettings
from magnetar.broker.settings.scalable import ScalableTopicSettings
from magnetar.broker.settings.security import SecuritySettings
from magnetar.broker.settings.tracing import TracingSettings
from magnetar.broker.settings.transactions import TransactionSettings

QUOTA_POLICIES = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")
SCHEMA_STRATEGIES = (
    "UNDEFINED",
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
)


class BrokerSettings(
    HttpListenSettings,
    LoadBalanceSettings,
    PolicySettings,
    SecuritySettings,
    ScalableTopicSettings,
    TransactionSettings,
    TracingSettings,
    ReplicationSettings,
    ReplicatedSubscriptionSettings,
):
    """A part of the configuration of `magnetar standalone` and `magnetar broker`."""

    # ---- Where it listens
    port: int = setting(
        6650, "brokerServicePort", "Port of the binary protocol; 0 takes any free one.", minimum=0, maximum=65535
    )
    http_port: int = setting(
        8080, "webServicePort", "Port of the admin API; 0 takes any free one.", minimum=0, maximum=65535
    )
    cluster_name: str = setting(
        "standalone",
        "clusterName",
        "Name of this cluster in topic stats and policies.",
        differs="A server that is started without a file has a name; Pulsar's standalone has this one as well.",
    )

    # ---- Connections
    max_message_size: int = setting(
        5 * 1024 * 1024, "maxMessageSize", "Largest message; clients chunk above it.", unit="bytes", minimum=1024
    )
    keep_alive_interval_s: float = setting(
        30.0,
        "keepAliveIntervalSeconds",
        "Silence before a PING; twice this closes the connection.",
        unit="s",
        minimum=0.1,
    )
    broker_shutdown_timeout_ms: int = setting(
        60_000,
        "brokerShutdownTimeoutMs",
        "How long a broker that ends hands its bundles to other brokers, one after the other; the rest is taken over afterwards.",
        unit="ms",
        minimum=0,
        dynamic=True,
    )
    max_connections: int = setting(
        0,
        "brokerMaxConnections",
        "Connections of the binary protocol at the same time, TLS included; further ones take the place of those that have not said who "
        "they are, or are closed. 0: as many as open files allow.",
        minimum=0,
    )
    max_connections_per_ip: int = setting(
        0,
        "brokerMaxConnectionsPerIp",
        "The same for one client address (IPv6: one /64), and for its HTTP connections; 0 for no limit.",
        minimum=0,
    )
    max_http_server_connections: int = setting(
        HTTP_CONNECTIONS_MAX,
        "maxHttpServerConnections",
        "HTTP and HTTPS connections at the same time, at most a quarter of the open files; further ones take the place of idle ones.",
        minimum=1,
    )
    max_pending_publish_requests_per_connection: int = setting(
        10_000,
        "maxPendingPublishRequestsPerConnection",
        "Published entries of a connection that wait for the disk; above it reading from the socket pauses.",
        minimum=1,
        differs="Entries wait here without a thread or an object each, and a deeper queue makes larger groups for one fsync.",
    )

    max_message_publish_buffer_size_mb: int = setting(
        128,
        "maxMessagePublishBufferSizeInMB",
        "Published bytes of all connections that wait for the disk; above it reading from their sockets pauses.",
        unit="MiB",
        minimum=1,
        differs="Pulsar takes half of the JVM's direct memory; there is none here, and a laptop is to be left room.",
        dynamic=True,
    )

    # ---- Topics
    allow_auto_topic_creation: bool = setting(
        True, "allowAutoTopicCreation", "Create a topic when a client first names it.", dynamic=True
    )
    allow_auto_topic_creation_type: str = setting(
        "non-partitioned",
        "allowAutoTopicCreationType",
        "What is created then; partitioned ones get defaultNumPartitions.",
        choices=("non-partitioned", "partitioned"),
        dynamic=True,
    )
    default_num_partitions: int = setting(
        1,
        "defaultNumPartitions",
        "Partitions of a topic that is created partitioned on demand.",
        minimum=1,
        dynamic=True,
    )
    allow_auto_subscription_creation: bool = setting(
        True,
        "allowAutoSubscriptionCreation",
        "Create a durable subscription when a consumer first names it.",
        dynamic=True,
    )
    max_producers_per_topic: int = setting(
        0, "maxProducersPerTopic", "Producers a topic takes; 0: any number.", minimum=0, dynamic=True
    )
    max_consumers_per_topic: int = setting(
        0, "maxConsumersPerTopic", "Consumers a topic takes; 0: any number.", minimum=0, dynamic=True
    )
    max_consumers_per_subscription: int = setting(
        0, "maxConsumersPerSubscription", "Consumers a subscription takes; 0: any number.", minimum=0, dynamic=True
    )
    # ---- Deduplication
    broker_deduplication_enabled: bool = setting(
        False,
        "brokerDeduplicationEnabled",
        "Drop messages whose producer name and sequence id were stored before.",
        dynamic=True,
    )
    broker_deduplication_entries_interval: int = setting(
        1000,
        "brokerDeduplicationEntriesInterval",
        "Entries after which a snapshot of the sequence ids is stored.",
        minimum=1,
    )
    broker_deduplication_max_number_of_producers: int = setting(
        10_000, "brokerDeduplicationMaxNumberOfProducers", "Producer names remembered in a snapshot.", minimum=1
    )
    # ---- Acknowledgements and dispatch
    acknowledgment_at_batch_index_level_enabled: bool = setting(
        True,
        "acknowledgmentAtBatchIndexLevelEnabled",
        "Remember which messages of a batch were acknowledged.",
    )
    max_unacked_messages_per_consumer: int = setting(
        50_000,
        "maxUnackedMessagesPerConsumer",
        "A shared consumer that holds more is sent nothing until it acknowledges; 0: no limit.",
        minimum=0,
        dynamic=True,
    )
    max_unacked_messages_per_subscription: int = setting(
        200_000,
        "maxUnackedMessagesPerSubscription",
        "A shared subscription that holds more stops dispatching until half are acknowledged; 0: no limit.",
        minimum=0,
        dynamic=True,
    )
    active_consumer_failover_delay_ms: int = setting(
        1000,
        "activeConsumerFailoverDelayTimeMillis",
        "Pause before a new active consumer is served, for the old one's acknowledgements to arrive.",
        unit="ms",
        minimum=0,
    )
    active_consumer_failover_consistent_hashing: bool = setting(
        False,
        "activeConsumerFailoverConsistentHashing",
        "Failover chooses by the ring of consumer names for partitions as well; false: by partition number.",
    )
    subscription_key_shared_use_consistent_hashing: bool = setting(
        True,
        "subscriptionKeySharedUseConsistentHashing",
        "Key_Shared assigns hashes by a consistent hashing ring; false: by splitting ranges.",
    )
    subscription_key_shared_consistent_hashing_replica_points: int = setting(
        100, "subscriptionKeySharedConsistentHashingReplicaPoints", "Points of a consumer on the ring.", minimum=1
    )

    # ---- Delayed delivery
    delayed_delivery_enabled: bool = setting(
        True, "delayedDeliveryEnabled", "Hold messages back until their deliver_at.", dynamic=True
    )
    delayed_delivery_tick_ms: int = setting(
        1000,
        "delayedDeliveryTickTimeMillis",
        "How late a delayed message may come.",
        unit="ms",
        minimum=1,
        dynamic=True,
    )

    # ---- Schemas
    schema_compatibility_strategy: str = setting(
        "FULL",
        "schemaCompatibilityStrategy",
        "Which schema may follow which, where the namespace does not say; docs/reference/schemas.md has the table.",
        choices=SCHEMA_STRATEGIES,
        dynamic=True,
    )
    is_schema_validation_enforced: bool = setting(
        False,
        "isSchemaValidationEnforced",
        "Refuse producers without a schema on topics that have one, whatever the namespace says.",
        dynamic=True,
    )
    schema_json_allow_legacy_jackson_format: bool = setting(
        False,
        "schemaJsonAllowLegacyJacksonFormat",
        "A schema of type JSON may be defined by json-schema.org, as pulsar-rs sends them, instead of by Avro.",
    )
    is_allow_auto_update_schema_enabled: bool = setting(
        True,
        "isAllowAutoUpdateSchemaEnabled",
        "Producers and consumers may add schemas; otherwise only the admin API does.",
        dynamic=True,
    )

    # ---- Retention, expiry, backlog
    default_retention_minutes: int = setting(
        0,
        "defaultRetentionTimeInMinutes",
        "How long acknowledged messages are kept; -1: for ever.",
        unit="min",
        minimum=-1,
        dynamic=True,
    )
    default_retention_size_mb: int = setting(
        0,
        "defaultRetentionSizeInMB",
        "How much of the acknowledged messages is kept; -1: all.",
        unit="MiB",
        minimum=-1,
        dynamic=True,
    )
    retention_check_interval_s: int = setting(
        120, "retentionCheckIntervalInSeconds", "How often ledgers that nobody needs are deleted.", unit="s", minimum=1
    )
    ttl_default_s: int = setting(
        0,
        "ttlDurationDefaultInSeconds",
        "Unacknowledged messages older than this are skipped; 0: never.",
        unit="s",
        minimum=0,
        dynamic=True,
    )
    message_expiry_check_interval_minutes: float = setting(
        5.0, "messageExpiryCheckIntervalInMinutes", "How often the time to live is applied.", unit="min", minimum=0.001
    )
    backlog_quota_check_enabled: bool = setting(True, "backlogQuotaCheckEnabled", "Enforce backlog quotas.")
    backlog_quota_check_interval_s: float = setting(
        60.0, "backlogQuotaCheckIntervalInSeconds", "How often backlogs are measured.", unit="s", minimum=0.1
    )
    backlog_quota_default_limit_bytes: int = setting(
        -1,
        "backlogQuotaDefaultLimitBytes",
        "Unacknowledged bytes a topic may hold; -1: any.",
        unit="bytes",
        minimum=-1,
        dynamic=True,
    )
    backlog_quota_default_limit_s: int = setting(
        -1,
        "backlogQuotaDefaultLimitSecond",
        "Age of the oldest unacknowledged message; -1: any.",
        unit="s",
        minimum=-1,
        dynamic=True,
    )
    backlog_quota_default_policy: str = setting(
        "producer_request_hold",
        "backlogQuotaDefaultRetentionPolicy",
        "What happens at the quota: producers wait, producers fail, or the oldest messages are skipped.",
        choices=QUOTA_POLICIES,
        dynamic=True,
    )

    # ---- Compaction
    compaction_threshold_bytes: int = setting(
        0,
        "brokerServiceCompactionThresholdInBytes",
        "Bytes published since a topic's last compaction that start the next one; 0: only on demand.",
        unit="bytes",
        minimum=0,
        dynamic=True,
    )
    compaction_monitor_interval_s: float = setting(
        60.0,
        "brokerServiceCompactionMonitorIntervalInSeconds",
        "How often topics are held against their compaction threshold.",
        unit="s",
        minimum=0.1,
    )
    compaction_retain_null_key: bool = setting(
        False, "topicCompactionRetainNullKey", "Compaction keeps messages without a key."
    )

    # ---- Memory
    topics_kept_in_memory: int = setting(
        10_000,
        "topicsKeptInMemory",
        "Loaded topics above which those are released from memory that nobody has used for a minute, that have no backlog, and on which "
        "nothing waits for its time, the one unused longest first: their next client loads them again. 0: never.",
        minimum=0,
        dynamic=True,
    )

    # ---- Managed ledgers
    managed_ledger_ensemble_size: int = setting(
        1,
        "managedLedgerDefaultEnsembleSize",
        "Bookies a ledger is spread over.",
        minimum=1,
        differs="One bookie is all there is in this process; Pulsar's standalone.conf says the same.",
    )
    managed_ledger_write_quorum: int = setting(
        1,
        "managedLedgerDefaultWriteQuorum",
        "Copies of each entry.",
        minimum=1,
        differs="One bookie is all there is in this process; Pulsar's standalone.conf says the same.",
    )
    managed_ledger_ack_quorum: int = setting(
        1,
        "managedLedgerDefaultAckQuorum",
        "Copies on disk before an entry counts as stored.",
        minimum=1,
        differs="One bookie is all there is in this process; Pulsar's standalone.conf says the same.",
    )
    managed_ledger_max_entries_per_ledger: int = setting(
        50_000, "managedLedgerMaxEntriesPerLedger", "Entries after which a topic starts a new ledger.", minimum=1
    )
    managed_ledger_max_size_per_ledger_mb: int = setting(
        2048, "managedLedgerMaxSizePerLedgerMbytes", "Size at which a topic starts a new ledger.", unit="MiB", minimum=1
    )
    managed_ledger_min_rollover_minutes: int = setting(
        10,
        "managedLedgerMinLedgerRolloverTimeMinutes",
        "A ledger younger than this is not rolled over for its entries; for its size it is.",
        unit="min",
        minimum=0,
    )
    managed_ledger_max_rollover_minutes: int = setting(
        240,
        "managedLedgerMaxLedgerRolloverTimeMinutes",
        "A ledger older than this is rolled over.",
        unit="min",
        minimum=1,
    )
    managed_ledger_cache_size_mb: int = setting(
        64,
        "managedLedgerCacheSizeMB",
        "Entries kept in memory for readers at the tail, over all topics.",
        unit="MiB",
        minimum=0,
        differs="Pulsar takes a fifth of the JVM's direct memory; there is none here, and a laptop is to be left room.",
        dynamic=True,
    )
    managed_ledger_cursor_max_entries_per_ledger: int = setting(
        50_000, "managedLedgerCursorMaxEntriesPerLedger", "Updates after which a cursor starts a new ledger.", minimum=1
    )
    managed_ledger_cursor_rollover_s: int = setting(
        14_400,
        "managedLedgerCursorRolloverTimeInSeconds",
        "Age at which a cursor starts a new ledger.",
        unit="s",
        minimum=1,
    )

    def check_broker(self) -> None:
        """Rules that tie several settings together. Raises ConfigError."""
        if not self.insecure_listen and not is_loopback(self.bind_address) and not self.asks_everybody:
            raise OpenDoorError(
                f"bindAddress {self.bind_address} lets other machines in and nothing asks who they are; switch on "
                "authenticationEnabled, or pass --insecure-listen (insecureListen=true) if that is wanted"
            )
        self.check_security()
        if not self.managed_ledger_ack_quorum <= self.managed_ledger_write_quorum <= self.managed_ledger_ensemble_size:
            raise ConfigError(
                "managedLedgerDefaultAckQuorum <= managedLedgerDefaultWriteQuorum <= managedLedgerDefaultEnsembleSize must hold"
            )

    def broker_warnings(self) -> list[str]:
        """What the operator must hear about at every start, one line each."""
        if is_loopback(self.bind_address):
            return []
        if not self.asks_everybody:
            return [f"insecureListen: anybody who reaches {self.bind_address} may read, write and delete everything"]
        return [
            f"brokerServicePort and webServicePort on {self.bind_address} do not encrypt: credentials shown there can be "
            "read on the network; let clients use the TLS ports"
        ]
