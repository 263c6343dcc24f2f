"""The settings of scalable topics, part of a broker's configuration."""

from __future__ import annotations

from magnetar.base.settings import Settings, setting


class ScalableTopicSettings(Settings):
    """Pulsar's keys; docs/explanation/scalable-topics.md says what they mean."""

    scalable_topics_enabled: bool = setting(
        True, "scalableTopicsEnabled", "Serve scalable topics (topic://), which clients of Pulsar 5 open."
    )
    scalable_consumer_grace_s: float = setting(
        60.0,
        "scalableTopicConsumerSessionGracePeriodSeconds",
        "How long the segments of a stream consumer whose connection broke wait for it to come back.",
        unit="s",
        minimum=0,
    )
    scalable_auto_scale_enabled: bool = setting(
        True,
        "scalableTopicAutoScaleEnabled",
        "Split busy segments of scalable topics and merge quiet ones.",
    )
    scalable_auto_scale_interval_s: float = setting(
        60.0,
        "scalableTopicAutoScaleIntervalSeconds",
        "How often each scalable topic is looked at: for changes, and for sealed segments that nobody needs any more.",
        unit="s",
        minimum=0.1,
    )
    scalable_max_segments: int = setting(
        64,
        "scalableTopicMaxSegments",
        "Active segments above which a scalable topic is not split by itself.",
        minimum=1,
    )
    scalable_min_segments: int = setting(
        1,
        "scalableTopicMinSegments",
        "Active segments below which a scalable topic is not merged by itself.",
        minimum=1,
    )
    scalable_max_dag_depth: int = setting(
        10,
        "scalableTopicMaxDagDepth",
        "Merges that a segment may descend from and still be merged by itself.",
        minimum=0,
    )
    scalable_split_cooldown_s: float = setting(
        60.0,
        "scalableTopicSplitCooldownSeconds",
        "Least time between two splits of a scalable topic by itself.",
        unit="s",
        minimum=0,
    )
    scalable_merge_cooldown_s: float = setting(
        300.0,
        "scalableTopicMergeCooldownSeconds",
        "Least time between two merges of a scalable topic by itself.",
        unit="s",
        minimum=0,
    )
    scalable_merge_window_s: float = setting(
        300.0,
        "scalableTopicMergeWindowSeconds",
        "How long two segments must have been below all merge thresholds before they are merged.",
        unit="s",
        minimum=0,
    )
    scalable_split_messages_in: float = setting(
        10000.0,
        "scalableTopicSplitMsgRateInThreshold",
        "Rate of messages published above which a segment is split.",
        unit="messages/s",
        minimum=0,
    )
    scalable_split_bytes_in: float = setting(
        50000000.0,
        "scalableTopicSplitBytesRateInThreshold",
        "Rate of bytes published above which a segment is split.",
        unit="bytes/s",
        minimum=0,
    )
    scalable_split_messages_out: float = setting(
        50000.0,
        "scalableTopicSplitMsgRateOutThreshold",
        "Rate of messages delivered above which a segment is split.",
        unit="messages/s",
        minimum=0,
    )
    scalable_split_bytes_out: float = setting(
        250000000.0,
        "scalableTopicSplitBytesRateOutThreshold",
        "Rate of bytes delivered above which a segment is split.",
        unit="bytes/s",
        minimum=0,
    )
    scalable_merge_messages_in: float = setting(
        1000.0,
        "scalableTopicMergeMsgRateInThreshold",
        "Rate of messages published below which a segment may be merged with its neighbour.",
        unit="messages/s",
        minimum=0,
    )
    scalable_merge_bytes_in: float = setting(
        5000000.0,
        "scalableTopicMergeBytesRateInThreshold",
        "Rate of bytes published below which a segment may be merged with its neighbour.",
        unit="bytes/s",
        minimum=0,
    )
    scalable_merge_messages_out: float = setting(
        5000.0,
        "scalableTopicMergeMsgRateOutThreshold",
        "Rate of messages delivered below which a segment may be merged with its neighbour.",
        unit="messages/s",
        minimum=0,
    )
    scalable_merge_bytes_out: float = setting(
        25000000.0,
        "scalableTopicMergeBytesRateOutThreshold",
        "Rate of bytes delivered below which a segment may be merged with its neighbour.",
        unit="bytes/s",
        minimum=0,
    )
