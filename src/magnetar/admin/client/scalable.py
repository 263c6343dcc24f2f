"""Scalable topics."""

from __future__ import annotations

from typing import Any, Literal

from magnetar.admin.client.noun import Noun, Texts, namespace_names, topic_names
from magnetar.admin.documents.scalable import (
    AutoScalePolicy,
    ScalableTopicMetadata,
    ScalableTopicStats,
    ScaleDecision,
    SegmentStats,
)
from magnetar.admin.documents.topics import ReplicatedSubscriptionsStatus

Statuses = list[ReplicatedSubscriptionsStatus]

_NAMESPACE = "/scalable/{tenant}/{namespace}"
_TOPIC = "/scalable/{tenant}/{namespace}/{topic}"
_SUBSCRIPTION = _TOPIC + "/subscriptions/{subscription}"

SubscriptionKind = Literal["STREAM", "QUEUE"]


class ScalableTopics(Noun):
    """A topic is named in full, `topic://tenant/namespace/topic`, or by its last part alone."""

    def list(self, namespace: str) -> Texts:
        """Complete names."""
        found: Texts = self._get(_NAMESPACE, Texts, **namespace_names(namespace))
        return found

    def list_by_property(self, namespace: str, name: str, value: str) -> Texts:
        """Of topics that have this property."""
        query = {"property": f"{name}={value}"}
        found: Texts = self._get(_NAMESPACE, Texts, query, **namespace_names(namespace))
        return found

    def create(self, topic: str, segments: int = 1, properties: dict[str, str] | None = None) -> None:
        self._put(_TOPIC, properties, {"numInitialSegments": segments}, **_names(topic))

    def metadata(self, topic: str) -> ScalableTopicMetadata:
        """Its layout."""
        found: ScalableTopicMetadata = self._get(_TOPIC, ScalableTopicMetadata, **_names(topic))
        return found

    def delete(self, topic: str, *, force: bool = False) -> None:
        """`force`: also while producers or consumers are connected."""
        self._delete(_TOPIC, {"force": force}, **_names(topic))

    def stats(self, topic: str) -> ScalableTopicStats:
        found: ScalableTopicStats = self._get(_TOPIC + "/stats", ScalableTopicStats, **_names(topic))
        return found

    def segment_stats(self, topic: str, segment_id: int) -> SegmentStats:
        template = _TOPIC + "/segments/{segmentId}/stats"
        found: SegmentStats = self._get(template, SegmentStats, segmentId=segment_id, **_names(topic))
        return found

    def policy(self, topic: str) -> AutoScalePolicy | None:
        """Its own policy of splits and merges, None if it has none."""
        found: AutoScalePolicy | None = self._get(_TOPIC + "/autoScalePolicy", AutoScalePolicy, **_names(topic))
        return found

    def set_policy(self, topic: str, policy: dict[str, Any]) -> None:
        """The fields of `AutoScalePolicy`, in camel case."""
        self._post(_TOPIC + "/autoScalePolicy", policy, **_names(topic))

    def remove_policy(self, topic: str) -> None:
        self._delete(_TOPIC + "/autoScalePolicy", **_names(topic))

    def explain(self, topic: str) -> ScaleDecision:
        """Whether it would be split or merged now, and why; and which segments wait for what."""
        found: ScaleDecision = self._get(_TOPIC + "/explain", ScaleDecision, **_names(topic))
        return found

    def split(self, topic: str, segment_id: int) -> None:
        """Into two halves."""
        self._post(_TOPIC + "/split/{segmentId}", segmentId=segment_id, **_names(topic))

    def merge(self, topic: str, segment_id: int, other_id: int) -> None:
        """Two neighbours into one."""
        template = _TOPIC + "/merge/{segmentId1}/{segmentId2}"
        self._post(template, segmentId1=segment_id, segmentId2=other_id, **_names(topic))

    def migrate(self, topic: str, *, force: bool = False) -> None:
        """Make the classic topic of that name a scalable one, in place. `force`: also while classic clients are connected, which are
        disconnected and told so."""
        self._post(_TOPIC + "/migrate", None, {"force": force}, **_names(topic))

    def create_subscription(self, topic: str, subscription: str, kind: SubscriptionKind = "QUEUE") -> None:
        """From the next message on."""
        self._put(_SUBSCRIPTION, None, {"type": kind}, subscription=subscription, **_names(topic))

    def delete_subscription(self, topic: str, subscription: str) -> None:
        self._delete(_SUBSCRIPTION, subscription=subscription, **_names(topic))

    def replicated(self, topic: str, subscription: str) -> dict[str, bool]:
        """Whether its place follows the subscription to other clusters."""
        template = _SUBSCRIPTION + "/replicatedSubscriptionStatus"
        return dict(self._get(template, dict[str, bool], subscription=subscription, **_names(topic)))

    def set_replicated(self, topic: str, subscription: str, replicated: bool) -> None:
        template = _SUBSCRIPTION + "/replicatedSubscriptionStatus"
        self._post(template, replicated, subscription=subscription, **_names(topic))

    def replication_status(self, topic: str) -> Statuses:
        """Of the replicated subscriptions: one status."""
        template = _TOPIC + "/replicatedSubscriptions"
        found: Statuses = self._get(template, list[ReplicatedSubscriptionsStatus], **_names(topic))
        return found

    def seek(self, topic: str, subscription: str, timestamp_ms: int) -> None:
        """To the first messages published at or after that time."""
        query = {"timestamp": timestamp_ms}
        self._post(_SUBSCRIPTION + "/seek", None, query, subscription=subscription, **_names(topic))

    def clear_backlog(self, topic: str, subscription: str) -> None:
        self._post(_SUBSCRIPTION + "/skip-all", subscription=subscription, **_names(topic))


def _names(topic: str) -> dict[str, Any]:
    """Path parameters; a short name, or one of another domain, stands for the scalable topic of that name."""
    names = topic_names(topic.replace("topic://", "persistent://", 1) if topic.startswith("topic://") else topic)
    return {key: value for key, value in names.items() if key != "domain"}
