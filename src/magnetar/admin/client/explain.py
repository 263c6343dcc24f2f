"""Why something does not go on."""

from __future__ import annotations

from magnetar.admin.client.noun import Noun
from magnetar.admin.explain_documents import Explanation


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

    def _explained(self, kind: str, **query: object) -> Explanation:
        found: Explanation = self._get(f"/explain/{kind}", Explanation, query)
        return found
