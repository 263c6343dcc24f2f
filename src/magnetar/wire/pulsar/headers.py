"""The headers in front of a message's payload, in a SEND frame and in a stored entry.

    [0x0e02 u32 size BrokerEntryMetadata]  0x0e01 u32 crc32c  u32 size MessageMetadata  payload

The first part is added by a broker for storage only. The checksum (CRC32C) covers everything behind it; old clients send
neither magic nor checksum.
"""

from __future__ import annotations

from struct import Struct

from magnetar.base.checksum import crc32c
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageMetadata

MAGIC_CRC32C = b"\x0e\x01"
MAGIC_BROKER_ENTRY_METADATA = b"\x0e\x02"
_MAGIC_CRC32C = 0x0E01
_MAGIC_BROKER_ENTRY_METADATA = 0x0E02
_MAGIC_AND_SIZE = Struct(">HI")
_SIZE = Struct(">I")


def checksum_matches(headers_and_payload: bytes) -> bool:
    """True for a valid CRC32C and for data without one (clients before 1.0 of the checksum feature)."""
    if headers_and_payload[:2] != MAGIC_CRC32C:
        return True
    return crc32c(headers_and_payload[6:]) == int.from_bytes(headers_and_payload[2:6], "big")


def metadata_bounds(data: bytes) -> tuple[int, int]:
    """Start and end offset of the MessageMetadata inside an entry; the payload begins at the end.

    Raises ValueError when the data is shorter than its own sizes say. Called for every entry that is dispatched.
    """
    offset = 0
    size = len(data)
    if size >= 6:
        magic, broker_size = _MAGIC_AND_SIZE.unpack_from(data)
        if magic == _MAGIC_BROKER_ENTRY_METADATA:
            offset = 6 + broker_size
            magic = int.from_bytes(data[offset : offset + 2], "big")
        if magic == _MAGIC_CRC32C:
            offset += 6
    start = offset + 4
    if start > size:
        raise ValueError(f"an entry of {size} bytes has no message metadata")
    end = start + _SIZE.unpack_from(data, offset)[0]
    if end > size:
        raise ValueError(f"message metadata ends at byte {end} of an entry of {size}")
    return start, end


def parse_metadata(data: bytes) -> MessageMetadata:
    """The MessageMetadata of an entry. Raises ValueError or protobuf's DecodeError on damaged bytes."""
    start, end = metadata_bounds(data)
    return MessageMetadata.FromString(data[start:end])


def payload_of(data: bytes) -> bytes:
    """The payload of an entry: still compressed, encrypted or batched if its metadata says so."""
    return data[metadata_bounds(data)[1] :]


def without_broker_metadata(data: bytes) -> bytes:
    """An entry as a client may see it: the broker's own part is stripped."""
    if data[:2] == MAGIC_BROKER_ENTRY_METADATA:
        return data[6 + int.from_bytes(data[2:6], "big") :]
    return data


def with_checksum(metadata: MessageMetadata, payload: bytes) -> bytes:
    """Headers and payload as a client would send them: for messages that the server itself writes."""
    serialized = metadata.SerializeToString()
    body = len(serialized).to_bytes(4, "big") + serialized + payload
    return MAGIC_CRC32C + crc32c(body).to_bytes(4, "big") + body
