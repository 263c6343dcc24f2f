"""Records of a subscription's pending acknowledgements: Pulsar's PendingAckMetadataEntry. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from magnetar.broker.transactions.pending_state import WHOLE, Ack, PendingState
from magnetar.broker.transactions.types import TransactionLogError, TxnId
from magnetar.managed_ledger.ack_ranges import int_to_words, words_to_int
from magnetar.managed_ledger.position import Position
from magnetar.wire.pulsar.PulsarApi_pb2 import CommandAck
from magnetar.wire.pulsar.Transactions_pb2 import ACK, PendingAckMetadataEntry

WORD_BITS = 64


def ack_of(position: Position, ack_set: Sequence[int] | None, batch_size: int) -> Ack:
    """Bits acknowledged, from the words of the protocol, whose bits are those that are not acknowledged."""
    if not ack_set:
        return Ack(position)
    size = batch_size or len(ack_set) * WORD_BITS
    return Ack(position, ~words_to_int(ack_set) & ((1 << size) - 1), size)


def left_of(ack: Ack) -> list[int]:
    """Back to words."""
    return int_to_words(((1 << ack.batch_size) - 1) & ~ack.acked)


def encode(txn: TxnId, acks: Sequence[Ack], cumulative: bool) -> bytes:
    """One record."""
    record = PendingAckMetadataEntry(
        pending_ack_op=ACK,
        ack_type=CommandAck.Cumulative if cumulative else CommandAck.Individual,
        txnid_most_bits=txn.most,
        txnid_least_bits=txn.least,
    )
    for ack in acks:
        added = record.pending_ack_metadata.add(ledgerId=ack.position.ledger_id, entryId=ack.position.entry_id)
        if ack.acked != WHOLE:
            added.batch_size = ack.batch_size
            added.ack_set.extend(left_of(ack) or [0])
    return record.SerializeToString()


def replay(state: PendingState, place: Position, data: bytes) -> None:
    """Apply a record. Raises TransactionLogError."""
    try:
        record = PendingAckMetadataEntry.FromString(data)
    except DecodeError:
        raise TransactionLogError(f"the record of pending acknowledgements at {tuple(place)} cannot be read") from None
    if record.pending_ack_op != ACK or not record.pending_ack_metadata:
        return
    acks = [
        ack_of(Position(each.ledgerId, each.entryId), each.ack_set, each.batch_size)
        for each in record.pending_ack_metadata
    ]
    txn = TxnId(record.txnid_most_bits, record.txnid_least_bits)
    state.restore(txn, acks, record.ack_type == CommandAck.Cumulative, place)
