"""Why something does not go on."""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.admin.client.noun import Noun
from magnetar.admin.documents.explain import Explanation
from magnetar.admin.documents.trace import MessageTrace


class Explain(Noun):
    """Each method answers a verdict, reasons with stable codes, and details."""

    def subscription(self, topic: str, subscription: str) -> Explanation:
        """Whether it moves, and if not, why. Of a partitioned topic all its partitions."""
        return self._explained("subscription", topic=topic, subscription=subscription)

    def topic(self, topic: str) -> Explanation:
        """Why it takes no messages, or not from everybody; which subscriptions stand still; who was refused of late."""
        return self._explained("topic", topic=topic)

    def producer(self, topic: str, producer: str | None = None) -> Explanation:
        """Why a producer does not get on or is refused; without a name any that would come."""
        return self._explained("producer", topic=topic, producer=producer)

    def key(
        self,
        topic: str,
        key: str,
        subscription: str | None = None,
        *,
        if_joins: str | None = None,
        if_leaves: str | None = None,
    ) -> Explanation:
        """Where a key is, and what the coming or going of a consumer would change."""
        query = {"subscription": subscription, "ifJoins": if_joins, "ifLeaves": if_leaves}
        return self._explained("key", topic=topic, key=key, **query)

    def message(self, topic: str, message_id: str, subscription: str | None = None) -> Explanation:
        """Where a message is, `ledger:entry` or `ledger:entry:partition:batch index`, for each subscription or for one."""
        return self._explained("message", topic=topic, id=message_id, subscription=subscription)

    def cursor(self, topic: str, subscription: str) -> Explanation:
        """Where a replicated subscription is in other clusters, and why not further."""
        return self._explained("cursor", topic=topic, subscription=subscription)

    def bundle(self, topic: str, *, if_broker_dies: str | None = None) -> Explanation:
        """Why the topic's bundle is on its broker, and what would move it."""
        return self._explained("bundle", topic=topic, ifBrokerDies=if_broker_dies)

    def ledger(self, ledger_id: int) -> Explanation:
        """Whose a ledger is, its copies, and what keeps it from being deleted."""
        return self._explained("ledger", id=ledger_id)

    def view(self, pipeline: str, view: str, key: Sequence[str] = (), *, if_units: int | None = None) -> Explanation:
        """How stale a view is and why, as the pipeline's driver reported; of a key (`VALUE`, or `COLUMN=VALUE` for each column) its vnode
        and unit; and what another number of units would move."""
        return self._explained("view", pipeline=pipeline, view=view, key=list(key) or None, ifUnits=if_units)

    def _explained(self, kind: str, **query: object) -> Explanation:
        found: Explanation = self._get(f"/explain/{kind}", Explanation, query)
        return found


class Traces(Noun):
    """Of messages that asked for it by the property `magnetar.trace`."""

    def get(self, topic: str, trace_id: str | None = None) -> list[MessageTrace]:
        """The newest first; `trace_id`: of a trace, or of a message as `ledger:entry`. Raises NotFoundError where it names none."""
        found: list[MessageTrace] = self._get("/trace", list[MessageTrace], {"topic": topic, "id": trace_id})
        return found
