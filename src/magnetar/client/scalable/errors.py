"""What else can go wrong for an application that sends and receives."""

from __future__ import annotations

from magnetar.base.errors import ClientError
from magnetar.client.scalable.messages import MessageId


class SendTimeoutError(ClientError):
    """A message was not confirmed within the producer's time-out. It may be stored nevertheless."""

    slug = "send-timeout"
    retriable = True


class ReceiveTimeoutError(ClientError):
    """No message came in the time that `receive` was given."""

    slug = "receive-timeout"
    retriable = True


class UnreadableMessageError(ClientError):
    """An entry cannot be read: it is damaged, encrypted, or a part of a chunked message. Acknowledge `id` to get past it."""

    slug = "unreadable-message"

    def __init__(self, identifier: MessageId, text: str) -> None:
        super().__init__(f"message {identifier} cannot be read: {text}")
        self.id = identifier


class ConsumerClosedError(ClientError):
    """The consumer was closed."""

    slug = "consumer-closed"
