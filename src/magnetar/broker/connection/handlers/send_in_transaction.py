"""SEND within a transaction. The message is stored like any other, once it is certain that somebody will end the transaction."""

from __future__ import annotations

from magnetar.broker.connection.handlers.transactions import acting_role
from magnetar.broker.connection.session import Session
from magnetar.broker.errors import NotAllowedError
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.topics.producer import Producer
from magnetar.broker.topics.publish import PublishOp
from magnetar.broker.topics.registry import AnyTopic
from magnetar.broker.topics.transactions import TransactionPublishOp
from magnetar.broker.transactions.markers import txn_of
from magnetar.broker.transactions.txn_id import TxnId
from magnetar.wire.pulsar.headers import metadata_bounds, with_checksum
from magnetar.wire.pulsar.PulsarApi_pb2 import CommandSend, MessageMetadata


def send_in_transaction(
    session: Session, producer: Producer, request: CommandSend, metadata: MessageMetadata, data: bytes
) -> None:
    """`metadata`, of `data`, was looked at: it names no other transaction than the command."""
    txn = TxnId(request.txnid_most_bits, request.txnid_least_bits)
    topic = session.producer_topics[request.producer_id]
    buffer = topic.transactions.buffer if isinstance(topic, PersistentTopic) else None
    data = stamped(metadata, data, txn)
    messages = metadata.num_messages_in_batch
    numbers = (producer, request.sequence_id, request.highest_sequence_id, messages, len(data))
    session.publish_started(len(data))
    who = acting_role(session)
    if buffer is None or not session.context.transactions.publishes_to(txn, str(topic.name), who):
        producer.refuse(PublishOp(*numbers), NotAllowedError(_refusal(txn, topic)))
        return
    producer.publish(TransactionPublishOp(buffer.state, txn, *numbers), data, request.is_chunk)


def _refusal(txn: TxnId, topic: AnyTopic) -> str:
    return f"transaction {txn} is not open, belongs to another role, or has not named {topic.name}"


def stamped(metadata: MessageMetadata, data: bytes, txn: TxnId) -> bytes:
    """The entry with the transaction in its metadata. The Go client names it in the command alone, which is not stored."""
    if txn_of(metadata) == txn:
        return data
    metadata.txnid_most_bits, metadata.txnid_least_bits = txn
    return with_checksum(metadata, data[metadata_bounds(data)[1] :])
