"""Batches: repeated (u32 size, SingleMessageMetadata, payload), compressed as a whole."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import DecodeError

from magnetar.base.limits import BATCH_MESSAGES_MAX
from magnetar.wire.pulsar.compression import PayloadError, decompress, unpacked_bytes_max
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata

Single = tuple[SingleMessageMetadata, bytes]

BATCHED_MESSAGE_BYTES_MIN = 6
"""The shortest message in a batch: u32 size, and the two bytes of the one required field of its metadata."""

_parse = SingleMessageMetadata.FromString


def is_batch(metadata: MessageMetadata) -> bool:
    """One message in a batch is a batch, too: presence counts."""
    return metadata.HasField("num_messages_in_batch")


def batch_messages_max(metadata: MessageMetadata, payload_bytes: int) -> int:
    """Messages that a batch with a payload of `payload_bytes` can hold, from what stands in its headers; at least 1.

    Encryption only makes a payload longer, so the bound holds for encrypted ones as well.
    """
    codec = metadata.compression
    plain_bytes = min(metadata.uncompressed_size, unpacked_bytes_max(codec, payload_bytes)) if codec else payload_bytes
    return max(1, min(plain_bytes // BATCHED_MESSAGE_BYTES_MIN, BATCH_MESSAGES_MAX))


def unpack(metadata: MessageMetadata, payload: bytes, cap_bytes: int) -> list[Single]:
    """The messages of a batch that is not encrypted. Raises PayloadError when the batch is not what its metadata says."""
    plain = decompress(metadata.compression, payload, metadata.uncompressed_size, cap_bytes)
    return split(plain, metadata.num_messages_in_batch)


def split(plain: bytes, count: int) -> list[Single]:
    """The messages of an uncompressed batch. Raises PayloadError."""
    if not 0 < count <= BATCH_MESSAGES_MAX:
        raise PayloadError(f"a batch cannot hold {count} messages")
    found: list[Single] = []
    end = len(plain)
    place = 0
    for _ in range(count):
        start = place + 4
        stop = start + int.from_bytes(plain[place:start], "big")
        if stop > end:
            raise PayloadError(f"the batch ends after {len(found)} of {count} messages")
        try:
            single = _parse(plain[start:stop])
        except DecodeError:
            raise PayloadError(f"message {len(found)} of the batch has no valid metadata") from None
        place = stop + single.payload_size
        if single.payload_size < 0 or place > end:
            raise PayloadError(f"the batch ends after {len(found)} of {count} messages")
        found.append((single, plain[stop:place]))
    return found


def join(messages: Iterable[Single]) -> bytes:
    """An uncompressed batch; `payload_size` of each metadata must fit."""
    parts: list[bytes] = []
    for single, payload in messages:
        serialized = single.SerializeToString()
        parts += (len(serialized).to_bytes(4, "big"), serialized, payload)
    return b"".join(parts)
