"""The entries of a topic from whoever can read them: raw frames, or the official client a message at a time."""

from __future__ import annotations

import time

import pulsar

from magnetar.pipeline.connect.broker import id_position, is_transient, open_reader, shared_client
from magnetar.pipeline.connect.offsets import Position
from magnetar.pipeline.connect.options import RECEIVER_QUEUE, Connection
from magnetar.pipeline.connect.raw.batch_walk import alone
from magnetar.pipeline.connect.raw.connection import RECONNECT_WAIT_S
from magnetar.pipeline.connect.raw.entries import Entry, RawEntries, read_entry
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageIdData


class ClientEntries:
    """The same through the official client, a message at a time: for what RawEntries cannot read."""

    def __init__(self, connection: Connection, topic: str, start: Position, queue: int = RECEIVER_QUEUE) -> None:
        self.problem, self.missing = "", False
        self._connection, self._topic, self._queue = connection, topic, queue
        self._held: pulsar.Reader | None = None
        self._behind = start

    def _open(self) -> pulsar.Reader:
        if self._held is None:
            self._held = open_reader(shared_client(self._connection), self._topic, self._behind, self._queue)
        return self._held

    def receive(self, timeout_s: float) -> list[Entry]:
        try:
            message = self._open().read_next(max(int(timeout_s * 1000), 1))
        except pulsar.PulsarException as error:
            self._broke(error)
            return []
        found = _of_message(message)
        at = Position(found.ledger, found.entry, found.messages.indexes[0])
        if at < self._behind:
            return []
        self._behind = at.after()
        return [found]

    def has_more(self) -> bool | None:
        try:
            return bool(self._open().has_message_available())
        except pulsar.PulsarException as error:
            self._broke(error)
            return None

    def _broke(self, error: pulsar.PulsarException) -> None:
        """Raises what another connection does not mend. A reader connects anew by itself; one that was not made yet is made again."""
        if not is_transient(error):
            raise error
        if not isinstance(error, pulsar.Timeout) or self._held is None:
            self.problem = f"{type(error).__name__}: {error}"
            time.sleep(RECONNECT_WAIT_S)

    def close(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None


def _of_message(message: pulsar.Message) -> Entry:
    at = id_position(message.message_id())
    batched = message.message_id().batch_index() >= 0
    version = message.schema_version() or None
    key, properties = message.partition_key() or None, list(message.properties().items())
    return Entry(
        at.ledger,
        at.entry,
        MessageIdData.FromString(message.message_id().serialize()).batch_size if batched else 0,
        message.publish_timestamp(),
        version.encode("latin-1") if isinstance(version, str) else version,
        alone(message.data(), at.batch, key, message.event_timestamp(), properties, message.has_null_value()),
    )


def entries(
    connection: Connection, topic: str, start: Position, raw: bool, queue: int = RECEIVER_QUEUE
) -> RawEntries[Entry] | ClientEntries:
    if raw:
        return RawEntries(connection, topic, start, read_entry, queue)
    return ClientEntries(connection, topic, start, queue)
