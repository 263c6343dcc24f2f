"""SEND within a transaction. The message is stored like any other, once it is certain that somebody will end the transaction."""

from __future__ import annotations

from magnetar.broker.connection.session import Session
from magnetar.broker.errors import NotAllowedError
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.topics.producer import Producer
from magnetar.broker.topics.publish import NO_ID, PublishOp
from magnetar.broker.topics.transactions import TransactionPublishOp
from magnetar.broker.transactions.markers import txn_of
from magnetar.broker.transactions.txn_id import TxnId
from magnetar.wire.pulsar.headers import metadata_bounds, parse_metadata, with_checksum
from magnetar.wire.pulsar.PulsarApi_pb2 import CommandSend


def send_in_transaction(session: Session, producer: Producer, request: CommandSend, data: bytes) -> None:
    """`data` was looked at: it is whole, and names no other transaction than the command."""
    txn = TxnId(request.txnid_most_bits, request.txnid_least_bits)
    topic = session.producer_topics[request.producer_id]
    buffer = topic.transactions.buffer if isinstance(topic, PersistentTopic) else None
    data = stamped(data, txn)
    numbers = (producer, request.sequence_id, request.highest_sequence_id, max(request.num_messages, 1), len(data))
    session.publish_started(len(data))
    if buffer is None or not session.context.transactions.publishes_to(txn, str(topic.name)):
        op = PublishOp(*numbers)
        op.deduplicated = True  # never on its way to the ledger: the watermarks do not know of it
        producer.pending.append(op)
        op.done(NotAllowedError(f"transaction {txn} is not open, or has not named {topic.name}"), NO_ID, NO_ID)
        return
    producer.publish(TransactionPublishOp(buffer.state, txn, *numbers), data, request.is_chunk)


def stamped(data: bytes, txn: TxnId) -> bytes:
    """The entry with the transaction in its metadata. The Go client names it in the command alone, which is not stored."""
    metadata = parse_metadata(data)
    if txn_of(metadata) == txn:
        return data
    metadata.txnid_most_bits, metadata.txnid_least_bits = txn
    return with_checksum(metadata, data[metadata_bounds(data)[1] :])
