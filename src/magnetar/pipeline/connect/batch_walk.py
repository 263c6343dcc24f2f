"""The messages of one entry as columns: a walk over a batch that makes no object for a message whose metadata is plain. A decision core.

Most messages of a batch have a key, a size and a sequence id in their metadata and nothing else. Those are recognised by their bytes; the
metadata of any other one is parsed whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import Final

from google.protobuf.message import DecodeError

from magnetar.base.limits import BATCH_MESSAGES_MAX
from magnetar.wire.pulsar.compression import PayloadError
from magnetar.wire.pulsar.PulsarApi_pb2 import SingleMessageMetadata

_SIZE: Final = Struct(">I")
_KEY: Final = 0x12
_PAYLOAD_SIZE: Final = 0x18
_SEQUENCE_ID: Final = 0x40
_FLAGS: Final = (0x48, 0x50)
"""Tags of null_value and null_partition_key, each with one byte behind it at the very end."""

Properties = list[tuple[str, str]]


@dataclass(slots=True)
class Messages:
    """Columns of equal length; a column that is None has nothing for any message.

    Value number i is `data[starts[i]:ends[i]]` unless `nulls` has i. `indexes`: within the batch. `keys`: None where there is none.
    `event_times_ms`: 0 where there is none.
    """

    data: bytes
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    indexes: Sequence[int] = ()
    keys: list[str | None] | None = None
    event_times_ms: list[int] | None = None
    properties: list[Properties] | None = None
    nulls: set[int] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.starts)

    def values(self) -> list[bytes | None]:
        found: list[bytes | None] = [self.data[a:b] for a, b in zip(self.starts, self.ends, strict=True)]
        for at in self.nulls:
            found[at] = None
        return found

    def cut(self, first: int, last: int | None) -> Messages:
        """Those whose index is at least `first` and below `last`."""
        kept = [at for at, index in enumerate(self.indexes) if index >= first and (last is None or index < last)]
        return Messages(
            self.data,
            [self.starts[at] for at in kept],
            [self.ends[at] for at in kept],
            [self.indexes[at] for at in kept],
            None if self.keys is None else [self.keys[at] for at in kept],
            None if self.event_times_ms is None else [self.event_times_ms[at] for at in kept],
            None if self.properties is None else [self.properties[at] for at in kept],
            {new for new, at in enumerate(kept) if at in self.nulls},
        )


def walk(data: bytes, count: int) -> Messages:
    """The messages of an uncompressed batch, without those that compaction took out. Raises PayloadError."""
    if not 0 < count <= BATCH_MESSAGES_MAX:
        raise PayloadError(f"a batch cannot hold {count} messages")
    found = Messages(data)
    keys: list[str | None] = []
    others: list[tuple[int, SingleMessageMetadata]] = []
    left_out: set[int] = set()
    size_at, add_start, add_end, add_key = _SIZE.unpack_from, found.starts.append, found.ends.append, keys.append
    place, keyed = 0, False
    try:
        for index in range(count):
            start = place + 4
            stop = start + size_at(data, place)[0]
            at, key = start, None
            if data[at] == _KEY:
                length = data[at + 1]
                if length < 0x80:
                    at += 2 + length
                    key = data[at - length : at].decode() or None
                    keyed = keyed or key is not None
            size = -1
            if data[at] == _PAYLOAD_SIZE:
                size = data[at + 1]
                at += 2
                if size >= 0x80:
                    size += (data[at] << 7) - 0x80
                    at += 1
                    if size >= 0x4000:
                        size += (data[at] << 14) - 0x4000
                        at += 1
                        if size >= 0x200000:
                            size = -1
                if at != stop and (at + 1 >= stop or data[at] != _SEQUENCE_ID or data[stop - 2] in _FLAGS):
                    size = -1
            if size < 0:
                single = SingleMessageMetadata.FromString(data[start:stop])
                size = single.payload_size
                key = single.partition_key or None
                keyed = keyed or key is not None
                if size < 0:
                    raise ValueError(f"message {index} has a negative size")
                if single.compacted_out:
                    left_out.add(index)
                    place = stop + size
                    continue
                others.append((len(keys), single))
            place = stop + size
            add_start(stop)
            add_end(place)
            add_key(key)
    except (IndexError, ValueError, DecodeError, StructError) as error:
        raise PayloadError(f"the batch is damaged behind {len(keys)} of {count} messages: {error}") from None
    if place > len(data):
        raise PayloadError(f"the batch ends within its {count} messages")
    found.keys = keys if keyed else None
    found.indexes = [index for index in range(count) if index not in left_out] if left_out else range(count)
    for at, single in others:
        describe(
            found, at, single.event_time, [(each.key, each.value) for each in single.properties], single.null_value
        )
    return found


def describe(messages: Messages, at: int, event_time_ms: int, properties: Properties, null: bool) -> None:
    """What only some messages have, of the one at a place."""
    if event_time_ms:
        if messages.event_times_ms is None:
            messages.event_times_ms = [0] * len(messages)
        messages.event_times_ms[at] = event_time_ms
    if properties:
        if messages.properties is None:
            messages.properties = [[] for _ in range(len(messages))]
        messages.properties[at] = properties
    if null:
        messages.nulls.add(at)


def alone(data: bytes, index: int, key: str | None, event_time_ms: int, properties: Properties, null: bool) -> Messages:
    """One message."""
    found = Messages(data, [0], [len(data)], [index], None if key is None else [key])
    describe(found, 0, event_time_ms, properties, null)
    return found
