"""Where a topic partition ends, asked over a connection that stays, and a socket that becomes readable when something is added.

The official client's reader that begins with the last message takes a timer of 0.1 s to say where that is, and blocks the thread that waits
for the next one: a request here takes one round trip, and any number of partitions are waited for at once.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from typing import Final, Protocol
from uuid import uuid4

from magnetar.pipeline.connect.offsets import Position
from magnetar.pipeline.connect.options import Connection
from magnetar.pipeline.connect.raw.connection import RawConnection, RawConnectionError, connect_to
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandSubscribe

_NO_ENTRY: Final = 2**64 - 2
"""From here on a ledger or entry id means that there is none; the protocol spells -1 as 2^64 - 1."""
_LATEST: Final = 2**63 - 1
_CONSUMER: Final = 0


class Told(Protocol):
    """Something that brokers tell of by themselves."""

    def arm(self) -> None: ...

    @property
    def waits_in_memory(self) -> bool: ...

    def socket(self) -> socket.socket | None: ...

    def receive(self) -> bool: ...

    def close(self) -> None: ...


class TopicEnd:
    """One topic partition's. Opens its connection when it is first needed and again after it broke. For one thread."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self._connection = connection
        self._topic = topic
        self._held: RawConnection | None = None
        self._told = False
        """Whether a message has come since the broker was asked to tell of the next one: it then tells of what is already known."""
        self._armed = False

    def ask(self) -> Position | None:
        """Behind the entry of the last message; None when there is none. Raises RawConnectionError."""
        try:
            return self._ask()
        except RawConnectionError:
            if self._held is None:
                raise
            self.close()
            return self._ask()  # the broker may have closed a connection that was not used for a while

    def arm(self) -> None:
        """From now on the socket becomes readable when something is added. What was added before has to be asked for afterwards.

        Raises RawConnectionError.
        """
        held = self._open()
        if self._told:
            close = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
            close.close_consumer.consumer_id = _CONSUMER
            close.close_consumer.request_id = held.request_id()
            held.send(close)
            held.answer(BaseCommand.SUCCESS)
            self._subscribe(held)
        if not self._armed:
            flow = BaseCommand(type=BaseCommand.FLOW)
            flow.flow.consumer_id = _CONSUMER
            flow.flow.messagePermits = 1
            held.send(flow)
            self._armed = True

    @property
    def waits_in_memory(self) -> bool:
        """Whether something has been received that the socket does not show any more."""
        return self._told or (self._held is not None and self._held.has_pending)

    def socket(self) -> socket.socket | None:
        """To be waited for; None without a connection."""
        return None if self._held is None else self._held.socket

    def receive(self) -> bool:
        """Take what made the socket readable; whether it was a message. Raises RawConnectionError."""
        held = self._open()
        if held.receive(0.001):
            self._told = True
        return self._told

    def close(self) -> None:
        if self._held is not None:
            self._held.close()
        self._held, self._told, self._armed = None, False, False

    def _ask(self) -> Position | None:
        held = self._open()
        ask = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID)
        ask.getLastMessageId.consumer_id = _CONSUMER
        ask.getLastMessageId.request_id = held.request_id()
        held.send(ask)
        last = held.answer(BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE).getLastMessageIdResponse.last_message_id
        self._told = held.drop_messages() or self._told  # else it would seem to wait to be received for ever
        if last.entryId >= _NO_ENTRY or last.ledgerId >= _NO_ENTRY:
            return None
        return Position(last.ledgerId, last.entryId + 1)

    def _open(self) -> RawConnection:
        if self._held is None:
            held = connect_to(self._connection, self._topic)
            try:
                self._subscribe(held)
            except BaseException:
                held.close()
                raise
            self._held = held
        return self._held

    def _subscribe(self, held: RawConnection) -> None:
        """Behind everything that is there. Messages that still come for the subscription before count as told of."""
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        subscribe = command.subscribe
        subscribe.topic = self._topic
        subscribe.subscription = f"reader-{uuid4().hex[:10]}"
        subscribe.subType = CommandSubscribe.Exclusive
        subscribe.consumer_id = _CONSUMER
        subscribe.request_id = held.request_id()
        subscribe.durable = False
        subscribe.start_message_id.ledgerId = _LATEST
        subscribe.start_message_id.entryId = _LATEST
        subscribe.initialPosition = CommandSubscribe.Latest
        held.send(command)
        held.answer(BaseCommand.SUCCESS)
        held.drop_messages()
        self._told = self._armed = False


def wait_for_any(ends: Sequence[Told], woken: socket.socket, timeout_s: float) -> None:
    """Until something is added to one of these, which are armed, `woken` becomes readable, a connection breaks, or the time is over."""
    if any(end.waits_in_memory for end in ends):
        return
    sockets = {held: end for end in ends if (held := end.socket()) is not None}
    poll = select.poll()
    by_number = {held.fileno(): end for held, end in sockets.items()}
    for number in (*by_number, woken.fileno()):
        poll.register(number, select.POLLIN)
    for number, _ in poll.poll(timeout_s * 1000):
        if number == woken.fileno():
            woken.recv(4096)
            continue
        try:
            by_number[number].receive()
        except RawConnectionError:
            by_number[number].close()
