"""Entries of a compacted ledger, in Pulsar's form (RawMessageImpl): u32 size, MessageIdData, u32 size, the topic's entry. Pure.

The id's `ack_set` names the messages that are left in a rewritten batch; Pulsar neither writes nor minds it.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from magnetar.broker.compaction.errors import CompactedDataError
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.position import Position
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageIdData

_SIGN = 1 << 63
_WRAP = 1 << 64


def encode_id(position: Position, partition: int, ack_set: Sequence[int] | None = None) -> bytes:
    """A message id as Pulsar serializes it; `partition` -1 for a plain topic, words as u64."""
    identifier = MessageIdData(ledgerId=position.ledger_id, entryId=position.entry_id)
    if partition >= 0:
        identifier.partition = partition
    if ack_set:
        identifier.ack_set.extend([word - _WRAP if word >= _SIGN else word for word in ack_set])
    return identifier.SerializeToString()


def decode_id(data: bytes) -> Position:
    """Raises CompactedDataError."""
    return _position(_parse_id(data))


def encode(identifier: bytes, data: bytes) -> bytes:
    """One entry of the compacted ledger."""
    return b"".join((len(identifier).to_bytes(4, "big"), identifier, len(data).to_bytes(4, "big"), data))


def decode(payload: bytes) -> tuple[Entry, list[int] | None]:
    """The topic's entry, and the words of the messages left in a rewritten batch. Raises CompactedDataError."""
    stop = 4 + int.from_bytes(payload[:4], "big")
    start = stop + 4
    if start + int.from_bytes(payload[stop:start], "big") != len(payload):
        raise CompactedDataError("an entry of the compacted ledger does not have the size that it says")
    identifier = _parse_id(payload[4:stop])
    ledger_id, entry_id = _position(identifier)
    words = [word % _WRAP for word in identifier.ack_set]
    return Entry(ledger_id, entry_id, payload[start:]), words or None


def _parse_id(data: bytes) -> MessageIdData:
    try:
        return MessageIdData.FromString(data)
    except DecodeError:
        raise CompactedDataError("an entry of the compacted ledger has no valid message id") from None


def _position(identifier: MessageIdData) -> Position:
    return Position(identifier.ledgerId, identifier.entryId)
