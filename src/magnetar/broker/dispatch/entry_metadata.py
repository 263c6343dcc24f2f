"""What dispatch must know of a stored entry, parsed once and kept on `entry.parsed` for all subscriptions."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from magnetar.base.limits import BATCH_MESSAGES_MAX
from magnetar.broker.dispatch.receiver import ONE_MESSAGE
from magnetar.hashing.murmur3 import key_slot
from magnetar.managed_ledger.entry import Entry
from magnetar.wire.pulsar.batches import batch_messages_max
from magnetar.wire.pulsar.headers import MAGIC_CRC32C, metadata_bounds
from magnetar.wire.pulsar.kernel import kernel
from magnetar.wire.pulsar.parsers import parse_stored_metadata
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageMetadata

NO_MARKER: Final = -1


class EntryMetadata:
    """The fields of MessageMetadata that dispatch, expiry and seeks look at."""

    __slots__ = ("_key", "_slot", "batched", "deliver_at_ms", "marker_type", "num_messages", "publish_time_ms")

    def __init__(
        self,
        num_messages: int,
        batched: bool,
        publish_time_ms: int,
        deliver_at_ms: int = 0,
        marker_type: int = NO_MARKER,
        key: bytes | str = b"",
        slot: int = -1,
    ) -> None:
        self.num_messages = num_messages
        """Messages in the entry, at least 1: what permits and unacknowledged counts are measured in."""
        self.batched = batched
        self.publish_time_ms = publish_time_ms
        self.deliver_at_ms = deliver_at_ms
        """0 when the message is not delayed."""
        self.marker_type = marker_type
        """NO_MARKER, or the type of a marker that no consumer may see."""
        self._key = key
        self._slot = slot

    @property
    def slot(self) -> int:
        """The Key_Shared slot, hashed on first use."""
        slot = self._slot
        if slot < 0:
            key = self._key
            slot = self._slot = key_slot(key.encode() if isinstance(key, str) else key)
            self._key = b""
        return slot


def metadata_of(entry: Entry) -> EntryMetadata:
    """The entry's metadata, parsed on first use.

    An entry that cannot be parsed counts as one plain message: it goes to a consumer, whose client reports it, and is not
    dropped here on a guess.
    """
    parsed = entry.parsed
    if parsed is None:
        known = kernel.stored_metadata(entry.data, BATCH_MESSAGES_MAX) if kernel else None
        parsed = entry.parsed = read_in_python(entry.data) if known is None else EntryMetadata(*known)
    return parsed  # type: ignore[no-any-return]  # Entry.parsed is the broker's scratch slot, Any by contract


NOT_PLAIN: Final = -1


def held_values_in_python(entries: list[Entry], keyed: bool) -> list[int]:
    """Of each entry what `Receiver.held` keeps of it, if it is plain: one message, not in a batch, not delayed, no marker. Else NOT_PLAIN.

    `keyed`: with the slot of its key, else with 0.
    """
    values: list[int] = []
    for entry in entries:
        metadata: EntryMetadata = entry.parsed or metadata_of(entry)
        if metadata.batched or metadata.deliver_at_ms or metadata.marker_type >= 0:
            values.append(NOT_PLAIN)
        else:
            values.append(ONE_MESSAGE | metadata.slot if keyed else ONE_MESSAGE)
    return values


held_values: Final[Callable[[list[Entry], bool], list[int]]] = kernel.held_values if kernel else held_values_in_python


def read_in_python(data: bytes) -> EntryMetadata:
    """See `metadata_of`."""
    try:
        if data[:2] == MAGIC_CRC32C:
            start, end = 10, 10 + int.from_bytes(data[6:10], "big")
            if end > len(data):
                raise ValueError
        else:
            start, end = metadata_bounds(data)
        return from_message_metadata(parse_stored_metadata(data[start:end]), len(data) - end)
    except (ValueError, DecodeError):
        return EntryMetadata(1, False, 0, 0, NO_MARKER, b"", 1)


def from_message_metadata(metadata: MessageMetadata, payload_bytes: int) -> EntryMetadata:
    """The fields of an already parsed MessageMetadata, for those who parse while publishing.

    A batch counts for what it can hold and no more: entries that were stored before publishing looked at their claims, or that
    another cluster let in, cost a consumer no more permits than others.
    """
    count = metadata.num_messages_in_batch
    if count != 1:
        count = max(1, min(count, batch_messages_max(metadata, payload_bytes)))
    key: bytes | str = metadata.ordering_key
    if not key:  # as in Pulsar the partition key, else a name unique to the message
        key = metadata.partition_key
        if key:
            key = _decoded(key) if metadata.partition_key_b64_encoded else key
        elif not metadata.HasField("ordering_key") and not metadata.HasField("partition_key"):
            key = f"{metadata.producer_name}-{metadata.sequence_id}"
    return EntryMetadata(
        count,
        metadata.HasField("num_messages_in_batch"),
        metadata.publish_time,
        metadata.deliver_at_time,
        metadata.marker_type if metadata.HasField("marker_type") else NO_MARKER,
        key,
    )


def _decoded(key: bytes | str) -> bytes:
    """`key` is bytes where it was stored without being UTF-8."""
    try:
        return base64.b64decode(key, validate=True)
    except (binascii.Error, ValueError):
        return key.encode() if isinstance(key, str) else key
