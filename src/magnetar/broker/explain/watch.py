"""One line of the log for each change: a subscription begins to stand still, another cause, or it goes on.

Looked at with the sampling of rates, so nothing of it is on the way of a message. A subscription that has sent something since the last
look moves: waiting for permits at one moment is normal.
"""

from __future__ import annotations

import logging
from typing import Final
from weakref import WeakKeyDictionary, WeakSet

from magnetar.base.clock import Clock
from magnetar.broker.explain.sentences import text_of
from magnetar.broker.explain.subscription import standing_of
from magnetar.broker.reasons import Code
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.persistent import PersistentTopic

LINES_PER_ROUND_MAX: Final = 50
"""Lines of one round over all topics; what changed beyond that is logged in the next rounds."""

LOOKS_PER_ROUND_MAX: Final = 1000
"""Subscriptions with a backlog that one round looks at, 40 us each; the others have their turn in the next rounds."""

logger = logging.getLogger(__name__)


class StandingWatch:
    """`begin_round` before a look at all topics, then `look` at each."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sent: WeakKeyDictionary[Subscription, tuple[int, int]] = WeakKeyDictionary()
        """Messages sent and the last acknowledgement at the last look, of subscriptions that have a backlog."""
        self._told: WeakKeyDictionary[Subscription, str] = WeakKeyDictionary()
        """The code that the log was told last, of subscriptions that stand still."""
        self._looked: WeakSet[Subscription] = WeakSet()
        """Those that had their turn since all had theirs."""
        self._looks = self._lines = 0

    def begin_round(self) -> None:
        if self._looks < LOOKS_PER_ROUND_MAX:
            self._looked.clear()
        self._looks = self._lines = 0

    def look(self, topic: PersistentTopic) -> None:
        for subscription in topic.subscriptions.all:
            self._look_at(topic, subscription)

    def _look_at(self, topic: PersistentTopic, subscription: Subscription) -> None:
        if not subscription.cursor.backlog_entries and subscription not in self._told:
            self._sent.pop(subscription, None)
            return
        if self._looks >= LOOKS_PER_ROUND_MAX or subscription in self._looked:
            return
        self._looks += 1
        self._looked.add(subscription)
        now = (subscription.messages_out, subscription.last_acked_ms)
        before = self._sent.get(subscription)
        self._sent[subscription] = now
        told = self._told.get(subscription, "")
        if before is None and not told:
            return  # it has a backlog only now
        standing = standing_of(topic, subscription, self._clock) if before == now else None
        reason = standing.reasons[0] if standing is not None and standing.moving is False and standing.reasons else None
        if reason is not None and reason.code is Code.NO_CONSUMERS and not subscription.last_flow_ms:
            reason = None  # nobody has consumed since it was loaded: no change
        code = str(reason.code) if reason is not None else ""
        if code == told or self._lines >= LINES_PER_ROUND_MAX:
            return
        self._lines += 1
        name = subscription.name
        if reason is not None:
            self._told[subscription] = code
            logger.info(
                "subscription stands still topic=%s subscription=%s reason=%s backlog=%d: %s",
                topic.name,
                name,
                code,
                subscription.backlog_entries,
                text_of(reason),
            )
        else:
            del self._told[subscription]
            logger.info("subscription goes on topic=%s subscription=%s after=%s", topic.name, name, told)
