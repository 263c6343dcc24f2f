"""Subscriptions of topics; of a partitioned topic those of all its partitions, where that makes sense."""

from __future__ import annotations

from magnetar.admin.client.http import Answer
from magnetar.admin.client.noun import ADMIN, TOPIC, Noun, Texts, topic_names
from magnetar.admin.documents.policies import DispatchRate
from magnetar.admin.documents.topics import BacklogAnalysis, MessageId, ReplicatedSubscriptionsStatus, ResetPosition

_ONE = TOPIC + "/subscription/{subscription}"
_RATE = TOPIC + "/{subscription}/dispatchRate"
_REPLICATED = TOPIC + "/replicatedSubscriptions"

Statuses = list[ReplicatedSubscriptionsStatus]


class Subscriptions(Noun):
    """Cursors with a name."""

    def list(self, topic: str) -> Texts:
        return list(self._get(TOPIC + "/subscriptions", Texts, **topic_names(topic)))

    def create(
        self,
        topic: str,
        subscription: str,
        start: MessageId | None = None,
        properties: dict[str, str] | None = None,
        replicated: bool = False,
    ) -> None:
        """`start` is the first message to be consumed; without it only what comes from now on."""
        body = None
        if start is not None or properties:
            start = start or MessageId(ledger_id=2**63 - 1, entry_id=2**63 - 1)
            body = ResetPosition(ledger_id=start.ledger_id, entry_id=start.entry_id, properties=properties)
        query = {"replicated": True} if replicated else None
        self._put(_ONE, body, query, subscription=subscription, **topic_names(topic))

    def delete(self, topic: str, subscription: str, *, force: bool = False) -> None:
        """`force`: even while consumers are connected."""
        self._delete(_ONE, {"force": force}, subscription=subscription, **topic_names(topic))

    def dispatch_rate(self, topic: str, subscription: str, *, applied: bool = False) -> DispatchRate | None:
        """The subscription's own; `applied`: what holds."""
        query = {"applied": applied or None}
        found: DispatchRate | None = self._get(
            _RATE, DispatchRate, query, subscription=subscription, **topic_names(topic)
        )
        return found

    def set_dispatch_rate(self, topic: str, subscription: str, rate: DispatchRate) -> None:
        self._post(_RATE, rate, subscription=subscription, **topic_names(topic))

    def remove_dispatch_rate(self, topic: str, subscription: str) -> None:
        self._delete(_RATE, subscription=subscription, **topic_names(topic))

    def properties(self, topic: str, subscription: str) -> dict[str, str]:
        template = _ONE + "/properties"
        return dict(self._get(template, dict[str, str], subscription=subscription, **topic_names(topic)))

    def set_properties(self, topic: str, subscription: str, properties: dict[str, str]) -> None:
        """Replaces them."""
        self._put(_ONE + "/properties", properties, subscription=subscription, **topic_names(topic))

    def analyze_backlog(self, topic: str, subscription: str) -> BacklogAnalysis:
        """Counts what is left to consume."""
        answer = self._post(_ONE + "/analyzeBacklog", subscription=subscription, **topic_names(topic))
        found: BacklogAnalysis = self._converted(answer, BacklogAnalysis)
        return found

    def peek(self, topic: str, subscription: str, place: int = 1) -> Answer:
        """The unacknowledged entry at a place, 1 being the next one, as it is stored. Raises NotFoundError beyond the end."""
        names = {"subscription": subscription, "number": place, **topic_names(topic)}
        return self._call("GET", ADMIN + _ONE + "/position/{number}", names)

    def clear_backlog(self, topic: str, subscription: str) -> None:
        self._post(_ONE + "/skip_all", subscription=subscription, **topic_names(topic))

    def skip(self, topic: str, subscription: str, count: int) -> None:
        self._post(_ONE + "/skip/{count}", subscription=subscription, count=count, **topic_names(topic))

    def expire(self, topic: str, subscription: str, older_than_s: int) -> None:
        """Mark older messages as consumed."""
        template = _ONE + "/expireMessages/{seconds}"
        self._post(template, subscription=subscription, seconds=older_than_s, **topic_names(topic))

    def expire_all(self, topic: str, older_than_s: int) -> None:
        """The same for every subscription."""
        template = TOPIC + "/all_subscription/expireMessages/{seconds}"
        self._post(template, seconds=older_than_s, **topic_names(topic))

    def expire_to(self, topic: str, subscription: str, position: MessageId, *, excluded: bool = False) -> None:
        """A message and everything before it count as consumed."""
        body = ResetPosition(ledger_id=position.ledger_id, entry_id=position.entry_id, is_excluded=excluded)
        self._post(_ONE + "/expireMessages", body, subscription=subscription, **topic_names(topic))

    def replicated(self, topic: str, subscription: str) -> dict[str, bool]:
        """By topic or partition."""
        template = _ONE + "/replicatedSubscriptionStatus"
        return dict(self._get(template, dict[str, bool], subscription=subscription, **topic_names(topic)))

    def set_replicated(self, topic: str, subscription: str, replicated: bool) -> None:
        template = _ONE + "/replicatedSubscriptionStatus"
        self._post(template, replicated, subscription=subscription, **topic_names(topic))

    def replication_status(self, topic: str) -> Statuses:
        """Status of the topic's replicated subscriptions; one for each partition."""
        return list(self._get(_REPLICATED, list[ReplicatedSubscriptionsStatus], **topic_names(topic)))

    def force_snapshot(self, topic: str) -> None:
        """Across the topic's clusters."""
        self._post(_REPLICATED + "/snapshot", **topic_names(topic))

    def exclude(self, topic: str, cluster: str) -> None:
        """Snapshots are taken without a cluster that is away, until it is back."""
        self._post(_REPLICATED + "/excluded/{cluster}", cluster=cluster, **topic_names(topic))

    def reset_to_time(self, topic: str, subscription: str, timestamp_ms: int) -> None:
        """The first message published at or after a time is consumed next."""
        template = _ONE + "/resetcursor/{timestamp}"
        self._post(template, subscription=subscription, timestamp=timestamp_ms, **topic_names(topic))

    def reset_to(self, topic: str, subscription: str, position: MessageId, *, excluded: bool = False) -> None:
        """A message, or the one behind it, is consumed next."""
        body = ResetPosition(ledger_id=position.ledger_id, entry_id=position.entry_id, is_excluded=excluded)
        self._post(_ONE + "/resetcursor", body, subscription=subscription, **topic_names(topic))
