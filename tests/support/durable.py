"""Before a crash that must not undo acknowledgements: the official client asks for no receipts, so they are asked for here."""

from __future__ import annotations

from magnetar.testing.server import ServerProcess
from tests.support.raw_client import CommandSubscribe, RawConnection


def acknowledge_durably(
    server: ServerProcess, topic: str, subscription: str, kind: int = CommandSubscribe.Exclusive
) -> None:
    """Acknowledge the next message with a receipt: with it everything acknowledged before on the cursor is on disk."""
    with RawConnection(server.port) as raw:
        raw.subscribe(topic, subscription, kind, permits=1)
        answer = raw.ack(raw.message()[0].message.message_id)
        assert answer is not None
        assert not answer.ackResponse.HasField("error"), answer
