"""One consumer's way through its connection to the client."""

from __future__ import annotations

from magnetar.broker.connection.session import Session
from magnetar.managed_ledger.entry import Entry
from magnetar.wire.pulsar import commands
from magnetar.wire.pulsar.headers import MAGIC_BROKER_ENTRY_METADATA, without_broker_metadata


class SessionConsumerChannel:
    """Implements `dispatch.ports.ConsumerChannel`. `partition` is that of the topic, -1 for a plain one."""

    __slots__ = ("_consumer_id", "_partition", "_session")

    def __init__(self, session: Session, consumer_id: int, partition: int) -> None:
        self._session = session
        self._consumer_id = consumer_id
        self._partition = partition

    @property
    def writable(self) -> bool:
        return self._session.output_open

    def deliver(
        self, entry: Entry, redelivery_count: int, ack_set: list[int] | None, consumer_epoch: int | None
    ) -> None:
        data = entry.data
        if data[:2] == MAGIC_BROKER_ENTRY_METADATA:
            data = without_broker_metadata(data)
        header = commands.message_header(
            self._consumer_id,
            entry.ledger_id,
            entry.entry_id,
            self._partition,
            redelivery_count,
            ack_set,
            consumer_epoch,
            len(data),
        )
        self._session.write_message(header, data)

    def active_changed(self, is_active: bool) -> None:
        if not self._session.closed:
            self._session.write(commands.active_consumer_change(self._consumer_id, is_active))

    def close(self) -> None:
        session = self._session
        session.consumers.pop(self._consumer_id, None)
        topic = session.consumer_topics.pop(self._consumer_id, None)
        if not session.closed:
            session.write(commands.close_consumer(self._consumer_id, session.context.destinations.of(topic)))

    def end_of_topic(self) -> None:
        """Only for clients that know the command: the C++ and Go clients close the connection on it (facts 0.5)."""
        session = self._session
        if not session.closed and not session.client_version.startswith(("Pulsar-CPP", "Pulsar-Go", "Pulsar Go")):
            session.write(commands.reached_end_of_topic(self._consumer_id))
