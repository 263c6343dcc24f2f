"""The settings of geo-replication and of replicated subscriptions, part of a broker's configuration."""

from __future__ import annotations

from magnetar.base.settings import Settings, setting


class ReplicationSettings(Settings):
    """Pulsar's keys; docs/explanation/geo-replication.md says what they mean. A cluster's record wins where it says something itself."""

    replication_producer_queue_size: int = setting(
        1000,
        "replicationProducerQueueSize",
        "Entries that a topic's replicator has sent to one cluster and that are not stored there yet; then it reads no more.",
        minimum=1,
        dynamic=True,
    )
    replication_start_at: str = setting(
        "latest",
        "replicationStartAt",
        "What a cluster gets that is added to a topic's: earliest, all that the topic holds, or latest, what comes from then on.",
        choices=("latest", "earliest"),
        dynamic=True,
    )
    create_topic_to_remote_cluster_for_replication: bool = setting(
        True,
        "createTopicToRemoteClusterForReplication",
        "Make topics and partitions in the other cluster where it does not do so by itself.",
    )
    dispatch_throttling_rate_per_replicator_in_msg: int = setting(
        0,
        "dispatchThrottlingRatePerReplicatorInMsg",
        "Messages a second to one cluster, per topic; 0: no limit.",
        minimum=0,
        dynamic=True,
    )
    dispatch_throttling_rate_per_replicator_in_byte: int = setting(
        0,
        "dispatchThrottlingRatePerReplicatorInByte",
        "Bytes a second to one cluster, per topic; 0: no limit.",
        minimum=0,
        dynamic=True,
    )
    broker_client_authentication_plugin: str = setting(
        "",
        "brokerClientAuthenticationPlugin",
        "How this cluster proves to others who it is: token, basic, tls, or Pulsar's class names of these.",
    )
    broker_client_authentication_parameters: str = setting(
        "",
        "brokerClientAuthenticationParameters",
        "The credential: token:..., file:///path of a token, or JSON with the plugin's parameters.",
        secret=True,
    )
    broker_client_tls_enabled: bool = setting(
        False, "brokerClientTlsEnabled", "Brokers reach each other, and other clusters, at their TLS addresses only."
    )
    broker_client_trust_certs_file_path: str = setting(
        "", "brokerClientTrustCertsFilePath", "Authorities of other clusters' certificates, PEM; empty: the system's."
    )
    tls_hostname_verification_enabled: bool = setting(
        True,
        "tlsHostnameVerificationEnabled",
        "A certificate of another broker or cluster must name the host that was connected to.",
        differs="A certificate is only worth something if it is the other side's.",
    )


class ReplicatedSubscriptionSettings(Settings):
    """Pulsar's keys, but for the last one. A namespace's properties of the same names win; docs/explanation/geo-replication.md."""

    enable_replicated_subscriptions: bool = setting(
        True,
        "enableReplicatedSubscriptions",
        "Keep replicated subscriptions at the same place in all clusters; false: they are local, whatever clients ask for.",
    )
    replicated_subscriptions_snapshot_frequency_ms: int = setting(
        1000,
        "replicatedSubscriptionsSnapshotFrequencyMillis",
        "How often a topic with replicated subscriptions takes a snapshot across clusters, if something was published.",
        unit="ms",
        minimum=10,
    )
    replicated_subscriptions_snapshot_timeout_s: int = setting(
        30,
        "replicatedSubscriptionsSnapshotTimeoutSeconds",
        "A snapshot that is not complete by then is dropped.",
        unit="s",
        minimum=1,
    )
    replicated_subscriptions_snapshot_max_cached_per_subscription: int = setting(
        30,
        "replicatedSubscriptionsSnapshotMaxCachedPerSubscription",
        "Snapshots a subscription has read and not yet passed; above it they are thinned out.",
        minimum=3,
    )
    replicated_subscriptions_partial_snapshots_after_s: int = setting(
        0,
        "replicatedSubscriptionsPartialSnapshotsAfterSeconds",
        "Take snapshots without a cluster that was away for so long; what it sent to some only may then be skipped. 0: never.",
        unit="s",
        minimum=0,
    )
