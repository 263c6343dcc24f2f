"""A producer in another cluster that is given entries as they are stored. One life: once ended it stays so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from magnetar.base.errors import MagnetarError
from magnetar.client.connection import ClientConnection
from magnetar.client.errors import UnreachableError
from magnetar.wire.pulsar import client_commands

CLOSE_TIMEOUT_S = 1.0
"""For the answer to a close. A broker that stops or gives a topic away waits for it; a silent cluster must not keep it from that."""


class RemoteProducer:
    """`on_receipt(ledger_id, entry_id)` for each entry in the order of `send`; `on_end(error)` once, unless `close` was called."""

    __slots__ = ("_on_end", "_on_receipt", "_pending", "connection", "ended", "name", "producer_id", "topic")

    def __init__(
        self,
        connection: ClientConnection,
        producer_id: int,
        topic: str,
        name: str,
        on_receipt: Callable[[int, int], None],
        on_end: Callable[[MagnetarError], None],
    ) -> None:
        self.connection = connection
        self.producer_id = producer_id
        self.topic = topic
        self.name = name
        self.ended = False
        self._pending: deque[int] = deque()
        self._on_receipt = on_receipt
        self._on_end = on_end

    def send(
        self,
        data: bytes,
        sequence_id: int,
        highest_sequence_id: int = 0,
        num_messages: int = 1,
        is_chunk: bool = False,
        marker: bool = False,
    ) -> None:
        """Headers and payload, with their checksum. Nothing happens after the end: whoever owns the producer was told."""
        if self.ended:
            return
        self._pending.append(sequence_id)
        header = client_commands.send_header(
            self.producer_id, sequence_id, highest_sequence_id, num_messages, is_chunk, marker, len(data)
        )
        self.connection.write(header, data)

    def receipt(self, sequence_id: int, ledger_id: int, entry_id: int) -> None:
        """Receipts come in order. Their number is the sequence id, or the source's ledger id: servers differ in that."""
        if self._pending:
            self._pending.popleft()
            self._on_receipt(ledger_id, entry_id)
        else:
            self.connection.abort(UnreachableError(f"{self.connection.address} acknowledged what was not sent"))

    def end(self, error: MagnetarError) -> None:
        if not self.ended:
            self.ended = True
            self._on_end(error)

    async def close(self) -> None:
        """Receipts that are still under way are lost: what they stand for is sent again by the next producer. Without an answer in
        `CLOSE_TIMEOUT_S` the connection is closed, and with it all its producers.
        """
        if self.ended:
            return
        self.ended = True
        connection = self.connection
        connection.producers.pop(self.producer_id, None)
        if not connection.closed:
            request_id = connection.next_request_id()
            await connection.request(
                client_commands.close_producer(self.producer_id, request_id), request_id, CLOSE_TIMEOUT_S
            )
