"""The settings of scalable topics, part of a broker's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.base.settings import setting


@dataclass(frozen=True, kw_only=True)
class ScalableTopicSettings:
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
