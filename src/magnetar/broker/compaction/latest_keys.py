"""Which messages survive compaction (Pulsar's two-phase compactor). Pure.

Phase one shows every entry in order to `see`; phase two shows the same entries to `rewrite`, which answers what is left of each.

- The last message of a key stays, unless its value is empty or null: a tombstone, which goes as well.
- Messages without a key go, unless `retain_null_key` (Pulsar 4: topicCompactionRetainNullKey, off). So do markers.
- A batch is rewritten with the removed messages emptied and `compacted_out`, so that indexes stay; unchanged, it stays byte for byte.
- What cannot be looked into stays: encrypted batches, unknown codecs, damaged entries. As such an entry may hold any key, tombstones
  behind it stay, too. A single encrypted message shows its key and is treated like any other.
- The chunks of a message stay or go together; those of a message whose last chunk is not there yet stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from magnetar.base.limits import COMPACTION_UNPACKED_BYTES_MAX
from magnetar.broker.compaction.errors import TooManyKeysError
from magnetar.managed_ledger.position import Position
from magnetar.wire.pulsar import batches
from magnetar.wire.pulsar.batches import Single
from magnetar.wire.pulsar.compression import PayloadError, compress
from magnetar.wire.pulsar.headers import metadata_bounds, with_checksum, without_broker_metadata
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata

KEY_OVERHEAD_BYTES: Final = 250
"""Counted for a remembered key or chunk besides its text: two objects and a dictionary's slot."""

WORD_BITS: Final = 64
_ENTRY_BITS: Final = 64
_INDEX_BITS: Final = 32
_REMOVED: Final = SingleMessageMetadata(compacted_out=True, payload_size=0)


class Kept(NamedTuple):
    """`data` is the entry to store. `ack_set`: words with the bits of the messages left in a batch, None when all are."""

    data: bytes
    ack_set: list[int] | None


class LatestKeys:
    """The newest place of each key. Raises TooManyKeysError when they outgrow `memory_bytes_max`."""

    def __init__(self, *, retain_null_key: bool, memory_bytes_max: int) -> None:
        self._retain_null_key = retain_null_key
        self._memory_bytes_max = memory_bytes_max
        self._latest: dict[str, int] = {}
        self._open_chunks: dict[str, list[int]] = {}
        self._chunks: dict[int, list[int]] = {}
        """Places of the chunks of a message, by the place of the last one: of messages that are their key's newest."""
        self._kept_chunks: set[int] | None = None
        self._unreadable_seen = False
        self.memory_bytes = 0
        self.messages_seen = 0
        self.messages_kept = 0

    # ---- Phase one

    def see(self, position: Position, data: bytes) -> None:
        """The next entry."""
        metadata, payload = _parse(data)
        if metadata is None:
            self._unreadable_seen = True
        elif metadata.HasField("marker_type"):
            return
        elif batches.is_batch(metadata):
            self._see_batch(position, metadata, payload)
        elif metadata.num_chunks_from_msg > 1:
            self._see_chunk(position, metadata)
        elif metadata.HasField("partition_key"):
            self._note(metadata.partition_key, _place(position, 0), _is_tombstone(metadata, payload))

    def _see_batch(self, position: Position, metadata: MessageMetadata, payload: bytes) -> None:
        singles = _readable(metadata, payload)
        if singles is None:
            self._unreadable_seen = True
            return
        for index, (single, value) in enumerate(singles):
            if single.HasField("partition_key") and not single.compacted_out:
                self._note(single.partition_key, _place(position, index), not value or single.null_value)

    def _see_chunk(self, position: Position, metadata: MessageMetadata) -> None:
        place = _place(position, 0)
        places = self._open_chunks.setdefault(metadata.uuid, [])
        if metadata.chunk_id == 0:
            places.clear()  # the producer sent the message again from its beginning
        places.append(place)
        self._charge(KEY_OVERHEAD_BYTES + len(metadata.uuid))
        if metadata.chunk_id < metadata.num_chunks_from_msg - 1:
            return
        del self._open_chunks[metadata.uuid]
        if metadata.HasField("partition_key"):
            self._note(metadata.partition_key, place, False)
            self._chunks[place] = places

    def _note(self, key: str, place: int, tombstone: bool) -> None:
        if tombstone and not self._unreadable_seen:
            before = self._latest.pop(key, None)
            if before is not None:
                self.memory_bytes -= KEY_OVERHEAD_BYTES + len(key)
        else:
            before = self._latest.get(key)
            self._latest[key] = place
            if before is None:
                self._charge(KEY_OVERHEAD_BYTES + len(key))
        if before is not None and self._chunks:
            self._chunks.pop(before, None)

    def _charge(self, size_bytes: int) -> None:
        self.memory_bytes += size_bytes
        if self.memory_bytes > self._memory_bytes_max:
            raise TooManyKeysError(
                f"the topic has more than {len(self._latest)} distinct keys: they take more than the"
                f" {self._memory_bytes_max} bytes set aside for compaction; use more partitions"
            )

    # ---- Phase two

    def rewrite(self, position: Position, data: bytes) -> Kept | None:
        """The messages of the entry that are left; None without any."""
        metadata, payload = _parse(data)
        if metadata is None:
            return Kept(data, None)
        if metadata.HasField("marker_type"):
            return None
        if batches.is_batch(metadata):
            return self._rewrite_batch(position, data, metadata, payload)
        self.messages_seen += 1
        kept = self._keeps_single(_place(position, 0), metadata)
        self.messages_kept += kept
        return Kept(data, None) if kept else None

    def _keeps_single(self, place: int, metadata: MessageMetadata) -> bool:
        if metadata.num_chunks_from_msg > 1:
            if self._kept_chunks is None:
                self._kept_chunks = set(self._all_kept_chunks())
            return place in self._kept_chunks or (self._retain_null_key and not metadata.HasField("partition_key"))
        if metadata.HasField("partition_key"):
            return self._latest.get(metadata.partition_key) == place
        return self._retain_null_key

    def _all_kept_chunks(self) -> Iterator[int]:
        for places in (*self._chunks.values(), *self._open_chunks.values()):
            yield from places

    def _rewrite_batch(self, position: Position, data: bytes, metadata: MessageMetadata, payload: bytes) -> Kept | None:
        singles = _readable(metadata, payload)
        if singles is None:
            return Kept(data, None)
        kept = [self._keeps_batched(_place(position, index), single) for index, (single, _) in enumerate(singles)]
        left = sum(kept)
        self.messages_seen += sum(not single.compacted_out for single, _ in singles)
        self.messages_kept += left
        if not left:
            return None
        if left == len(singles):
            return Kept(data, None)
        ack_set = words_of(kept)
        if all(keeps or single.compacted_out for keeps, (single, _) in zip(kept, singles, strict=True)):
            return Kept(data, ack_set)  # rewritten by an earlier compaction, and nothing more is gone
        return Kept(_rebuilt(data, metadata, singles, kept), ack_set)

    def _keeps_batched(self, place: int, single: SingleMessageMetadata) -> bool:
        if single.compacted_out:
            return False
        if single.HasField("partition_key"):
            return self._latest.get(single.partition_key) == place
        return self._retain_null_key


def words_of(kept: list[bool]) -> list[int]:
    """64-bit words with a bit for each index that is kept, lowest first, without trailing zero words."""
    number = sum(1 << index for index, keeps in enumerate(kept) if keeps)
    words: list[int] = []
    while number:
        words.append(number & ((1 << WORD_BITS) - 1))
        number >>= WORD_BITS
    return words


def last_index_of(ack_set: list[int]) -> int:
    """The highest index of a message that is left."""
    return (len(ack_set) - 1) * WORD_BITS + ack_set[-1].bit_length() - 1


def _parse(data: bytes) -> tuple[MessageMetadata | None, bytes]:
    """Metadata and payload; no metadata when the entry is damaged."""
    try:
        start, end = metadata_bounds(data)
        return MessageMetadata.FromString(data[start:end]), data[end:]
    except (ValueError, DecodeError):
        return None, b""


def _readable(metadata: MessageMetadata, payload: bytes) -> list[Single] | None:
    """The messages of a batch; None when it cannot be looked into."""
    if metadata.encryption_keys:
        return None
    try:
        return batches.unpack(metadata, payload, COMPACTION_UNPACKED_BYTES_MAX)
    except PayloadError:
        return None


def _is_tombstone(metadata: MessageMetadata, payload: bytes) -> bool:
    size_bytes = metadata.uncompressed_size if metadata.HasField("uncompressed_size") else len(payload)
    return size_bytes == 0 or metadata.null_value


def _rebuilt(data: bytes, metadata: MessageMetadata, singles: list[Single], kept: list[bool]) -> bytes:
    """The batch with what is not kept emptied, in the codec it came in; the broker's own metadata stays in front."""
    plain = batches.join(single if keeps else (_REMOVED, b"") for keeps, single in zip(kept, singles, strict=True))
    if metadata.compression or metadata.HasField("uncompressed_size"):
        metadata.uncompressed_size = len(plain)
    broker_bytes = len(data) - len(without_broker_metadata(data))
    return data[:broker_bytes] + with_checksum(metadata, compress(metadata.compression, plain))


def _place(position: Position, index: int) -> int:
    """A message's place as one number, in the order of the log."""
    return (position.ledger_id << _ENTRY_BITS | position.entry_id) << _INDEX_BITS | index
