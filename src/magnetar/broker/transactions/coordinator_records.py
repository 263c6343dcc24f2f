"""Records of a coordinator's log: Pulsar's TransactionMetadataEntry. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import DecodeError

from magnetar.broker.transactions.coordinator_state import CoordinatorState, Transaction, TxnStatus, complete
from magnetar.broker.transactions.types import TransactionLogError, TxnId
from magnetar.managed_ledger.position import Position
from magnetar.wire.pulsar.Transactions_pb2 import OPEN
from magnetar.wire.pulsar.Transactions_pb2 import TransactionMetadataEntry as Record
from magnetar.wire.pulsar.Transactions_pb2 import TxnStatus as TxnStatusOnDisk


def _record(operation: Record.TransactionMetadataOp.ValueType, txn: TxnId, now_ms: int, highest: int) -> Record:
    return Record(
        metadata_op=operation,
        txnid_most_bits=txn.most,
        txnid_least_bits=txn.least,
        last_modification_time=now_ms,
        max_sequence_id=highest,
    )


def opened(transaction: Transaction, highest: int) -> bytes:
    record = _record(Record.NEW, transaction.txn, transaction.started_ms, highest)
    record.timeout_ms = transaction.timeout_ms
    record.start_time = transaction.started_ms
    if transaction.owner:
        record.owner = transaction.owner
    return record.SerializeToString()


def partitions_added(txn: TxnId, topics: Iterable[str], now_ms: int, highest: int) -> bytes:
    record = _record(Record.ADD_PARTITION, txn, now_ms, highest)
    record.partitions.extend(topics)
    return record.SerializeToString()


def subscriptions_added(txn: TxnId, subscriptions: Iterable[tuple[str, str]], now_ms: int, highest: int) -> bytes:
    record = _record(Record.ADD_SUBSCRIPTION, txn, now_ms, highest)
    for topic, subscription in subscriptions:
        record.subscriptions.add(topic=topic, subscription=subscription)
    return record.SerializeToString()


def ended(txn: TxnId, status: TxnStatus, now_ms: int, highest: int) -> bytes:
    record = _record(Record.UPDATE, txn, now_ms, highest)
    record.expected_status = OPEN
    record.new_status = TxnStatusOnDisk.ValueType(status)
    return record.SerializeToString()


def replay(state: CoordinatorState, found: dict[TxnId, Transaction], position: Position, data: bytes) -> bool:
    """Apply the next record. `found`: transactions whose first record was seen. Raises TransactionLogError.

    False for a record without a first one: its transaction ended while the record was on its way."""
    try:
        record = Record.FromString(data)
    except DecodeError:
        raise TransactionLogError(f"the transaction log's record at {tuple(position)} cannot be read") from None
    txn = TxnId(record.txnid_most_bits, record.txnid_least_bits)
    state.highest = max(state.highest, record.max_sequence_id, txn.least)
    transaction = found.get(txn)
    if record.metadata_op == Record.NEW:
        transaction = found[txn] = Transaction(txn, record.start_time, record.timeout_ms, record.owner)
        state.restore(transaction)
    if transaction is None:
        return False
    transaction.places.append(position)
    if record.metadata_op == Record.ADD_PARTITION:
        transaction.partitions.update({topic: complete(topic) for topic in record.partitions})
    elif record.metadata_op == Record.ADD_SUBSCRIPTION:
        for each in record.subscriptions:
            transaction.subscriptions[each.topic, each.subscription] = complete(each.topic), each.subscription
    elif record.metadata_op == Record.UPDATE and transaction.status is TxnStatus.OPEN:
        transaction.status = TxnStatus(record.new_status)
    return True
