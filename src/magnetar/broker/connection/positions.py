"""Message ids of the wire to positions: unsigned there, signed here (-1:-1 is earliest, 2^63-1 twice is latest)."""

from __future__ import annotations

from magnetar.managed_ledger.position import Position
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageIdData

_SIGN = 1 << 63
_WRAP = 1 << 64


def signed(value: int) -> int:
    """An unsigned 64-bit id as the signed one it stands for."""
    return value - _WRAP if value >= _SIGN else value


def position_of(message_id: MessageIdData) -> Position:
    return Position(signed(message_id.ledgerId), signed(message_id.entryId))


def set_message_id(message_id: MessageIdData, position: Position, partition: int, batch_index: int = -1) -> None:
    """Fill a message id of an answer; -1 becomes 2^64-1."""
    message_id.ledgerId = position.ledger_id % _WRAP
    message_id.entryId = position.entry_id % _WRAP
    message_id.partition = partition
    message_id.batch_index = batch_index
