"""Transactions by raw frames: the official Python client has no API for them (its C++ library has none either)."""

from __future__ import annotations

from typing import Any

from magnetar.wire.pulsar.PulsarApi_pb2 import ABORT, COMMIT, BaseCommand, CommandAck, MessageIdData
from tests.support.raw_client import RawConnection, batch, message, split

Txn = tuple[int, int]
"""Most and least bits."""


class TransactionRefused(AssertionError):
    """The server answered a request with an error; `code` is its ServerError."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class RawTransactions(RawConnection):
    """What a Java or Go client does below its transaction API, one request at a time."""

    def connect_coordinator(self, coordinator: int = 0) -> None:
        command = BaseCommand(type=BaseCommand.TC_CLIENT_CONNECT_REQUEST)
        command.tcClientConnectRequest.request_id = self.next_request_id()
        command.tcClientConnectRequest.tc_id = coordinator
        self.send(command)
        _checked(self.expect(BaseCommand.TC_CLIENT_CONNECT_RESPONSE)[0].tcClientConnectResponse)

    def begin(self, ttl_ms: int = 60_000, coordinator: int = 0) -> Txn:
        command = BaseCommand(type=BaseCommand.NEW_TXN)
        command.newTxn.request_id = self.next_request_id()
        command.newTxn.txn_ttl_millis = ttl_ms
        command.newTxn.tc_id = coordinator
        self.send(command)
        answer = _checked(self.expect(BaseCommand.NEW_TXN_RESPONSE)[0].newTxnResponse)
        return answer.txnid_most_bits, answer.txnid_least_bits

    def add_partitions(self, txn: Txn, *topics: str) -> None:
        command = BaseCommand(type=BaseCommand.ADD_PARTITION_TO_TXN)
        request = command.addPartitionToTxn
        request.request_id = self.next_request_id()
        request.txnid_most_bits, request.txnid_least_bits = txn
        request.partitions.extend(topics)
        self.send(command)
        _checked(self.expect(BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE)[0].addPartitionToTxnResponse)

    def add_subscription(self, txn: Txn, topic: str, subscription: str) -> None:
        command = BaseCommand(type=BaseCommand.ADD_SUBSCRIPTION_TO_TXN)
        request = command.addSubscriptionToTxn
        request.request_id = self.next_request_id()
        request.txnid_most_bits, request.txnid_least_bits = txn
        request.subscription.add(topic=topic, subscription=subscription)
        self.send(command)
        _checked(self.expect(BaseCommand.ADD_SUBSCRIPTION_TO_TXN_RESPONSE)[0].addSubscriptionToTxnResponse)

    def end_nowait(self, txn: Txn, commit: bool) -> None:
        """END_TXN; the answer is not waited for."""
        command = BaseCommand(type=BaseCommand.END_TXN)
        request = command.endTxn
        request.request_id = self.next_request_id()
        request.txnid_most_bits, request.txnid_least_bits = txn
        request.txn_action = COMMIT if commit else ABORT
        self.send(command)

    def _end(self, txn: Txn, commit: bool) -> None:
        self.end_nowait(txn, commit)
        _checked(self.expect(BaseCommand.END_TXN_RESPONSE)[0].endTxnResponse)

    def commit(self, txn: Txn) -> None:
        self._end(txn, True)

    def abort(self, txn: Txn) -> None:
        self._end(txn, False)

    # ---- Messages

    def publish_in(
        self, txn: Txn, payload: bytes, *, producer_id: int = 1, sequence_id: int = 0, in_metadata: bool = True
    ) -> BaseCommand:
        """SEND and its receipt. `in_metadata` False: as the Go client does, which names the transaction in the command alone."""
        named = {"txnid_most_bits": txn[0], "txnid_least_bits": txn[1]}
        data = message(payload, sequence_id=sequence_id, **(named if in_metadata else {}))
        self.publish(data, producer_id=producer_id, sequence_id=sequence_id, **named)
        return self.receipt()

    def publish_batch_in(
        self, txn: Txn, payloads: list[bytes], *, producer_id: int = 1, sequence_id: int = 0
    ) -> BaseCommand:
        named = {"txnid_most_bits": txn[0], "txnid_least_bits": txn[1]}
        data = message(batch(payloads), sequence_id=sequence_id, num_messages_in_batch=len(payloads), **named)
        self.publish(data, producer_id=producer_id, sequence_id=sequence_id, num_messages=len(payloads), **named)
        return self.receipt()

    def ack_in(
        self,
        txn: Txn,
        *ids: MessageIdData,
        consumer_id: int = 1,
        cumulative: bool = False,
        ack_set: list[int] | None = None,
        batch_size: int = 0,
    ) -> None:
        """ACK and its response. `ack_set`: words, bit set = not acknowledged."""
        command = BaseCommand(type=BaseCommand.ACK)
        command.ack.consumer_id = consumer_id
        command.ack.ack_type = CommandAck.Cumulative if cumulative else CommandAck.Individual
        command.ack.txnid_most_bits, command.ack.txnid_least_bits = txn
        command.ack.request_id = self.next_request_id()
        for message_id in ids:
            added = command.ack.message_id.add(ledgerId=message_id.ledgerId, entryId=message_id.entryId)
            if ack_set is not None:
                added.ack_set.extend(ack_set)
                added.batch_size = batch_size
        self.send(command)
        answer = _checked(self.expect(BaseCommand.ACK_RESPONSE)[0].ackResponse)
        assert (answer.txnid_most_bits, answer.txnid_least_bits) == txn

    def payload(self, timeout_s: float | None = None) -> bytes:
        """Of the next MESSAGE."""
        return split(self.message(timeout_s)[1])[1]

    def no_message(self, for_s: float = 0.3) -> bool:
        return self.silent(BaseCommand.MESSAGE, for_s=for_s)


def _checked(response: Any) -> Any:
    if response.HasField("error"):
        raise TransactionRefused(response.error, response.message)
    return response
