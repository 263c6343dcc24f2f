"""The product's client of scalable topics in a simulated process, and what its connections tell the checkers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from magnetar.base.tasks import TaskScope
from magnetar.client.client import Endpoint, RemoteClient
from magnetar.client.connection import REQUEST_TIMEOUT_S, ClientConnection, Undo
from magnetar.client.scalable.attachment import Attachment
from magnetar.client.scalable.context import ClientContext
from magnetar.testing.sim.messaging.nodes import BROKER_PORT, ApplicationNode
from magnetar.testing.sim.network import SimTransport
from magnetar.testing.sim.scalable.promises import ScalablePromises, Spot
from magnetar.wire.pulsar.frames import HEADER_BYTES
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandAck


class TappedConnection(ClientConnection):
    """Says when entries come and acknowledgements go, and when the broker wrote what comes."""

    promises: ScalablePromises

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._taken_bytes = 0

    def _received(self, command: BaseCommand, rest: bytes) -> None:
        self._taken_bytes += HEADER_BYTES + command.ByteSize() + len(rest)
        if command.type == BaseCommand.MESSAGE:
            reader = self._reader(command.message.consumer_id)
            if reader is not None:
                assert isinstance(self._transport, SimTransport)
                spot = command.message.message_id.ledgerId, command.message.message_id.entryId
                sent_s = self._transport.pipe_in.sent_s(self._taken_bytes)
                self.promises.arrived(*reader, spot, self.address, sent_s)
        super()._received(command, rest)

    def _reader(self, consumer_id: int) -> tuple[str, int] | None:
        """Subscription and segment."""
        attachment = self.consumers.get(consumer_id)
        if not isinstance(attachment, Attachment):
            return None
        return attachment.subscription, attachment.segment.id

    async def request(
        self,
        command: BaseCommand,
        request_id: int,
        timeout_s: float = REQUEST_TIMEOUT_S,
        undo: Undo | None = None,
    ) -> BaseCommand:
        if command.type != BaseCommand.ACK:
            return await super().request(command, request_id, timeout_s, undo)
        ack = command.ack
        reader = self._reader(ack.consumer_id)
        spots: list[Spot] = [(each.ledgerId, each.entryId) for each in ack.message_id]
        cumulative = ack.ack_type == CommandAck.Cumulative
        if reader is not None:
            self.promises.acknowledges(*reader, spots, cumulative)
        answer = await super().request(command, request_id, timeout_s, undo)
        if reader is not None and not answer.ackResponse.HasField("error"):
            self.promises.settles(*reader, spots, cumulative)
        return answer


@asynccontextmanager
async def client(node: ApplicationNode, brokers: list[str], promises: ScalablePromises) -> AsyncIterator[ClientContext]:
    """As `magnetar.client.scalable.Client` makes it, over simulated surroundings."""
    assert node.process is not None

    class Connection(TappedConnection):
        pass

    Connection.promises = promises
    endpoint = Endpoint("pulsar://" + ",".join(f"{broker}:{BROKER_PORT}" for broker in brokers))
    remote = RemoteClient(endpoint, node.network, "simulated client")
    remote.connection_class = Connection
    async with TaskScope(f"client of {node.process.name}") as scope:
        yield ClientContext(remote, node.machine.clock, scope, node.world.rng(f"{node.process.name} client"))
        await remote.close()
