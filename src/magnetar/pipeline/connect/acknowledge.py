"""Acknowledgement of what a query has finished, so that the backlog of its subscription is what is really left."""

from __future__ import annotations

from collections.abc import Mapping

import pulsar

from magnetar.pipeline.connect.broker import shared_client
from magnetar.pipeline.connect.offsets import Position
from magnetar.pipeline.connect.options import Connection
from magnetar.pipeline.connect.segment_order import is_segment
from magnetar.pipeline.connect.segments.cursor import PIPELINE_PROPERTY, SegmentCursor


class Acknowledger:
    """Moves a subscription's cursors: one consumer per topic partition, held open because a cursor's owner acknowledges."""

    __slots__ = ("_client", "_connection", "_consumers", "_cursors", "_known", "_subscription")

    def __init__(self, connection: Connection, subscription: str) -> None:
        self._client = shared_client(connection)
        self._connection = connection
        self._cursors: dict[str, SegmentCursor] = {}
        self._subscription = subscription
        self._consumers: dict[str, pulsar.Consumer] = {}
        self._known: dict[str, Position] = {}
        """What was acknowledged last, by topic."""

    def acknowledge(self, offsets: Mapping[str, Position]) -> None:
        """Everything before these positions. A batch is acknowledged once all of it lies before them.

        The official client collects acknowledgements for 0.1 s before it sends them: the broker knows then, or after `close`.
        """
        for topic, at in offsets.items():
            if self._known.get(topic) == at:
                continue
            self._acknowledge(topic, at)
            self._known[topic] = at
        for gone in set(self._cursors) - set(offsets):  # a segment that the topic has deleted
            self._cursors.pop(gone).close()

    def _acknowledge(self, topic: str, at: Position) -> None:
        if is_segment(topic):
            cursor = self._cursors.setdefault(topic, SegmentCursor(self._connection, topic, self._subscription))
            cursor.acknowledge(at)
            return
        consumer = self._consumer(topic)  # subscribes, so that what is not read is kept
        if at.entry > 0:
            consumer.acknowledge_cumulative(pulsar.MessageId(-1, at.ledger, at.entry - 1, -1))

    def close(self) -> None:
        """Returns when the broker knows of all that was acknowledged; may be used again."""
        for consumer in self._consumers.values():
            consumer.close()
        self._consumers.clear()
        for cursor in self._cursors.values():
            cursor.close()
        self._cursors.clear()

    def _consumer(self, topic: str) -> pulsar.Consumer:
        if topic not in self._consumers:
            self._consumers[topic] = self._client.subscribe(
                topic,
                self._subscription,
                consumer_type=pulsar.ConsumerType.Failover,
                initial_position=pulsar.InitialPosition.Earliest,
                receiver_queue_size=1,
                properties={PIPELINE_PROPERTY: self._subscription},
            )
        return self._consumers[topic]
