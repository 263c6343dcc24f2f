"""Messages as the application sees them, their ids, checkpoints, and how entries become messages. Pure."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import DecodeError

from magnetar.base.errors import InvalidArgumentError
from magnetar.wire.pulsar import batches, compression, headers
from magnetar.wire.pulsar.compression import PayloadError
from magnetar.wire.pulsar.PulsarApi_pb2 import (
    CommandMessage,
    MessageIdData,
    MessageMetadata,
    SingleMessageMetadata,
)

Place = tuple[int, int]
"""Ledger and entry."""

_SEGMENT: Final = struct.Struct(">q")
_COUNT: Final = struct.Struct(">i")
_POSITIONS, _EARLIEST, _LATEST = 0, 1, 2


@dataclass(frozen=True, slots=True)
class MessageId:
    """Where a message is stored. `batch_index` is -1 for a message that is an entry of its own."""

    segment_id: int
    ledger_id: int
    entry_id: int
    batch_index: int = -1

    @property
    def place(self) -> Place:
        return self.ledger_id, self.entry_id

    def __str__(self) -> str:
        batch = "" if self.batch_index < 0 else f":{self.batch_index}"
        return f"{self.segment_id}/{self.ledger_id}:{self.entry_id}{batch}"


@dataclass(frozen=True, slots=True)
class Message:
    """`value` is None for a deletion of its key. Times in milliseconds since 1970; `event_time_ms` is 0 without one."""

    id: MessageId
    topic: str
    value: bytes | None
    key: str | None
    properties: Mapping[str, str]
    publish_time_ms: int
    event_time_ms: int
    producer_name: str
    sequence_id: int
    redelivery_count: int
    positions: Mapping[int, MessageId] = field(repr=False, compare=False, default_factory=dict)
    """The last message of each segment that was received up to this one, itself included: what a cumulative acknowledgement covers."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a checkpoint consumer stands: the last message read of each segment. `to_bytes` is what Pulsar 5's clients write."""

    positions: Mapping[int, MessageId] = field(default_factory=dict)
    kind: int = _POSITIONS

    def to_bytes(self) -> bytes:
        if self.kind != _POSITIONS:
            return bytes([self.kind])
        parts = [bytes([_POSITIONS]), _COUNT.pack(len(self.positions))]
        for segment_id, each in sorted(self.positions.items()):
            stored = MessageIdData(ledgerId=each.ledger_id, entryId=each.entry_id)
            if each.batch_index >= 0:
                stored.batch_index = each.batch_index
            data = stored.SerializeToString()
            parts += (_SEGMENT.pack(segment_id), _COUNT.pack(len(data)), data)
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Checkpoint:
        """Raises InvalidArgumentError for anything but what `to_bytes` gives."""
        try:
            if data[0] in (_EARLIEST, _LATEST) and len(data) == 1:
                return cls(kind=data[0])
            if data[0] != _POSITIONS:
                raise ValueError(f"kind {data[0]}")
            positions, at = {}, 1 + _COUNT.size
            for _ in range(*_COUNT.unpack_from(data, 1)):
                (segment_id,), (size,) = _SEGMENT.unpack_from(data, at), _COUNT.unpack_from(data, at + _SEGMENT.size)
                at += _SEGMENT.size + _COUNT.size
                if size < 0 or at + size > len(data):
                    raise ValueError("it is too short")
                stored = MessageIdData.FromString(data[at : at + size])
                positions[segment_id] = MessageId(segment_id, stored.ledgerId, stored.entryId, stored.batch_index)
                at += size
            if at != len(data):
                raise ValueError("it is too long")
        except (IndexError, ValueError, struct.error, DecodeError) as error:
            raise InvalidArgumentError(f"these bytes are not a checkpoint: {error}") from None
        return cls(positions)


EARLIEST: Final = Checkpoint(kind=_EARLIEST)
"""Before the first message that is kept."""

LATEST: Final = Checkpoint(kind=_LATEST)
"""Behind the last message."""


_WORD_MASK: Final = (1 << 64) - 1


def messages_told(told: CommandMessage, data: bytes) -> int:
    """How many messages the server counts this entry as against a consumer's permits: those of a batch that are not acknowledged, with such
    as compaction took away; 1 for what cannot be read."""
    try:
        start, end = headers.metadata_bounds(data)
        metadata = MessageMetadata.FromString(data[start:end])
    except (ValueError, DecodeError):
        return 1
    if not batches.is_batch(metadata):
        return 1
    count = metadata.num_messages_in_batch
    return min(count, sum((word & _WORD_MASK).bit_count() for word in told.ack_set)) if told.ack_set else count


def read_entry(segment_id: int, topic: str, told: CommandMessage, data: bytes, cap_bytes: int) -> list[Message]:
    """The messages of an entry that are not acknowledged. Raises PayloadError for what cannot be read: damaged, encrypted, a chunk."""
    if not headers.checksum_matches(headers.without_broker_metadata(data)):
        raise PayloadError("its checksum does not match")
    try:
        start, end = headers.metadata_bounds(data)
        metadata = MessageMetadata.FromString(data[start:end])
    except (ValueError, DecodeError) as error:
        raise PayloadError(f"its metadata cannot be read: {error}") from None
    if metadata.encryption_keys:
        raise PayloadError("it is encrypted, and this client has no keys")
    if metadata.num_chunks_from_msg > 1:
        raise PayloadError("it is a part of a chunked message, which this client does not put together")
    place = told.message_id.ledgerId, told.message_id.entryId
    payload = compression.decompress(metadata.compression, data[end:], metadata.uncompressed_size, cap_bytes)
    if not batches.is_batch(metadata):
        identifier = MessageId(segment_id, *place)
        return [_message(identifier, topic, metadata, metadata, payload, told.redelivery_count)]
    found = []
    for index, (single, part) in enumerate(batches.split(payload, metadata.num_messages_in_batch)):
        if not single.compacted_out and _unacknowledged(told, index):
            identifier = MessageId(segment_id, *place, index)
            found.append(_message(identifier, topic, metadata, single, part, told.redelivery_count))
    return found


def _unacknowledged(told: CommandMessage, index: int) -> bool:
    """The bits of messages that are acknowledged are cleared in `ack_set`; without one none is."""
    if not told.ack_set:
        return True
    word, bit = divmod(index, 64)
    return word < len(told.ack_set) and bool(told.ack_set[word] >> bit & 1)


def _message(
    identifier: MessageId,
    topic: str,
    metadata: MessageMetadata,
    own: MessageMetadata | SingleMessageMetadata,
    payload: bytes,
    redeliveries: int,
) -> Message:
    key = own.partition_key if own.HasField("partition_key") else None
    if key is not None and own.partition_key_b64_encoded:
        key = base64.b64decode(key).decode(errors="replace")
    return Message(
        identifier,
        topic,
        None if own.null_value else payload,
        key,
        {pair.key: pair.value for pair in own.properties},
        metadata.publish_time,
        own.event_time,
        metadata.producer_name,
        own.sequence_id if own.HasField("sequence_id") else metadata.sequence_id + max(identifier.batch_index, 0),
        redeliveries,
    )
