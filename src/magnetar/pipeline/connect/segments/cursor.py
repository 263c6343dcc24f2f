"""A subscription's cursor in one segment, moved over a connection of its own: the official client opens no segments."""

from __future__ import annotations

from typing import Final

from magnetar.pipeline.connect.offsets import Position
from magnetar.pipeline.connect.options import Connection
from magnetar.pipeline.connect.raw.connection import RawConnection, RawConnectionError, connect_to
from magnetar.wire.pulsar.client_commands import acknowledge
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandSubscribe, ServerError

PIPELINE_PROPERTY: Final = "magnetar.pipeline"
"""Of a consumer: what it acknowledges a pipeline has committed. The broker's traces say so (`broker/tracing/following`)."""

_CONSUMER: Final = 0


class SegmentCursor:
    """Subscribes when it is first used, so that what is not read is kept, and again after the connection broke. For one thread."""

    def __init__(self, connection: Connection, topic: str, subscription: str) -> None:
        self._connection = connection
        self._topic = topic
        self._subscription = subscription
        self._held: RawConnection | None = None

    def acknowledge(self, at: Position) -> None:
        """Everything before a position; the broker knows on return. Of a segment that is gone nothing is left to acknowledge.

        Raises RawConnectionError.
        """
        try:
            self._acknowledge(at)
        except RawConnectionError as error:
            was_open = self._held is not None
            self.close()
            if error.code == ServerError.TopicNotFound:
                return
            if not was_open:
                raise
            self._acknowledge(at)  # the broker may have closed a connection that was not used for a while

    def close(self) -> None:
        if self._held is not None:
            self._held.close()
        self._held = None

    def _acknowledge(self, at: Position) -> None:
        if self._held is None:
            self._held = self._open()
        if at.entry > 0:
            request_id = self._held.request_id()
            self._held.send(acknowledge(_CONSUMER, request_id, [(at.ledger, at.entry - 1)], True))
            answer = self._held.answer(BaseCommand.ACK_RESPONSE).ackResponse
            if answer.HasField("error"):
                raise RawConnectionError(f"{self._topic}: not acknowledged: {answer.message}", answer.error)

    def _open(self) -> RawConnection:
        held = connect_to(self._connection, self._topic)
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        subscribe = command.subscribe
        subscribe.topic = self._topic
        subscribe.subscription = self._subscription
        subscribe.subType = CommandSubscribe.Failover
        subscribe.consumer_id = _CONSUMER
        subscribe.request_id = held.request_id()
        subscribe.durable = True
        subscribe.initialPosition = CommandSubscribe.Earliest
        subscribe.metadata.add(key=PIPELINE_PROPERTY, value=self._subscription)
        try:
            held.send(command)
            held.answer(BaseCommand.SUCCESS)
        except BaseException:
            held.close()
            raise
        return held
