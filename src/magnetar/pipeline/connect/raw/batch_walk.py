"""The messages of one entry as columns: a walk over a batch that makes no object for a message whose metadata is plain. A decision core.

Most messages of a batch have a key, a size and a sequence id in their metadata and nothing else. Those are recognised by their bytes; the
metadata of any other one is parsed whole. Neighbours that are laid out alike, of one size with keys of one length, are recognised together.
Where the compiled functions are in use, one call finds all places of a batch that has plain messages only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from magnetar.base.limits import BATCH_MESSAGES_MAX
from magnetar.wire.pulsar.compression import PayloadError
from magnetar.wire.pulsar.kernel import kernel
from magnetar.wire.pulsar.PulsarApi_pb2 import SingleMessageMetadata

_SIZE: Final = Struct(">I")
_KEY: Final = 0x12
_PAYLOAD_SIZE: Final = 0x18
_SEQUENCE_ID: Final = 0x40
_FLAGS: Final = (0x48, 0x50)
"""Tags of null_value and null_partition_key, each with one byte behind it at the very end."""

RUN_LEAST: Final = 8
"""Fewer neighbours that are alike are not worth the arrays."""
RUN_PAUSE_MAX: Final = 256
"""After a look at neighbours that are not alike there is none for 8 messages, then 16, ... at most so many."""

Properties = list[tuple[str, str]]


@dataclass(slots=True)
class Messages:
    """Columns of equal length; a column that is None has nothing for any message.

    Value number i is `data[starts[i]:ends[i]]` unless `nulls` has i. `indexes`: within the batch. `key_starts`, `key_ends`: where in
    `data` the keys are, an empty place for none. `named`: keys that are not there. `event_times_ms`: 0 where there is none.
    """

    data: bytes
    starts: Sequence[int] = field(default_factory=list)
    ends: Sequence[int] = field(default_factory=list)
    indexes: Sequence[int] = ()
    key_starts: Sequence[int] | None = None
    key_ends: Sequence[int] | None = None
    named: list[str | None] | None = None
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

    @property
    def keys(self) -> list[str | None] | None:
        """None where there is none. Raises PayloadError for bytes that are no text."""
        if self.key_starts is None or self.key_ends is None:
            return self.named
        data = self.data
        try:
            return [data[a:b].decode() if a < b else None for a, b in zip(self.key_starts, self.key_ends, strict=True)]
        except UnicodeDecodeError as error:
            raise PayloadError(f"a key is not UTF-8 text: {error}") from None

    def cut(self, first: int, last: int | None) -> Messages:
        """Those whose index is at least `first` and below `last`."""
        return self.at(
            [at for at, index in enumerate(self.indexes) if index >= first and (last is None or index < last)]
        )

    def at(self, kept: Sequence[int]) -> Messages:
        """Those at these places."""
        return Messages(
            self.data,
            [self.starts[at] for at in kept],
            [self.ends[at] for at in kept],
            [self.indexes[at] for at in kept],
            None if self.key_starts is None else [self.key_starts[at] for at in kept],
            None if self.key_ends is None else [self.key_ends[at] for at in kept],
            None if self.named is None else [self.named[at] for at in kept],
            None if self.event_times_ms is None else [self.event_times_ms[at] for at in kept],
            None if self.properties is None else [self.properties[at] for at in kept],
            {new for new, at in enumerate(kept) if at in self.nulls},
        )


def walk(data: bytes, count: int, place: int = 0) -> Messages:
    """The messages of an uncompressed batch, which begins at `place`, without those that compaction took out. Raises PayloadError."""
    if not 0 < count <= BATCH_MESSAGES_MAX:
        raise PayloadError(f"a batch cannot hold {count} messages")
    plain = kernel and kernel.batch_places(data, place, count)
    return of_places(data, count, *plain) if plain else walk_in_python(data, count, place)


def of_places(data: bytes, count: int, places: bytes, _end: int, keyed: bool) -> Messages:
    """Messages of what the compiled `batch_places` finds. `places`: starts, ends, starts of keys, ends of keys, 64 bits each."""
    numbers = memoryview(places).cast("q")
    keys = (numbers[2 * count : 3 * count], numbers[3 * count :]) if keyed else (None, None)
    return Messages(data, numbers[:count], numbers[count : 2 * count], range(count), *keys)


def walk_in_python(data: bytes, count: int, place: int) -> Messages:
    """As `walk`."""
    places = _Places([], [], [], [])
    others: list[tuple[int, SingleMessageMetadata]] = []
    left_out: set[int] = set()
    try:
        end = _find(data, places, count, place, others, left_out)
    except (IndexError, ValueError, DecodeError, StructError) as error:
        raise PayloadError(f"the batch is damaged behind {len(places.starts)} of {count} messages: {error}") from None
    if end > len(data):
        raise PayloadError(f"the batch ends within its {count} messages")
    keyed = places.key_starts != places.key_ends
    found = Messages(
        data,
        places.starts,
        places.ends,
        [index for index in range(count) if index not in left_out] if left_out else range(count),
        places.key_starts if keyed else None,
        places.key_ends if keyed else None,
    )
    for at, single in others:
        describe(
            found, at, single.event_time, [(each.key, each.value) for each in single.properties], single.null_value
        )
    return found


class _Places(NamedTuple):
    """Of values and of keys, while they are looked for."""

    starts: list[int]
    ends: list[int]
    key_starts: list[int]
    key_ends: list[int]


def _find(
    data: bytes,
    found: _Places,
    count: int,
    place: int,
    others: list[tuple[int, SingleMessageMetadata]],
    left_out: set[int],
) -> int:
    """Fills in where values and keys are; the place behind the last message. `others`: those whose metadata says more, by place."""
    starts, ends, key_starts, key_ends = found
    size_at, add_start, add_end = _SIZE.unpack_from, starts.append, ends.append
    add_key_start, add_key_end = key_starts.append, key_ends.append
    index, look_at, pause = 0, 0, RUN_LEAST
    while index < count:
        start = place + 4
        stop = start + size_at(data, place)[0]
        at, key_start, key_end = start, 0, 0
        if data[at] == _KEY:
            length = data[at + 1]
            if length < 0x80:
                key_start = at + 2
                at = key_end = key_start + length
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
            key = single.partition_key.encode()
            key_start = data.find(key, start, stop) if key else 0
            key_end = key_start + len(key)
            if size < 0:
                raise ValueError(f"message {index} has a negative size")
            if single.compacted_out:
                left_out.add(index)
                place = stop + size
                index += 1
                continue
            others.append((len(key_starts), single))
        elif index >= look_at and count - index >= RUN_LEAST:
            stride = stop + size - place
            run = _run(data, place, stride, stop - place, key_start - place, key_end - place, at - place, count - index)
            if run >= RUN_LEAST:
                last = stop + (run - 1) * stride
                starts += range(stop, last + 1, stride)
                ends += range(stop + size, last + size + 1, stride)
                key_starts += range(key_start, key_start + run * stride, stride)
                key_ends += range(key_end, key_end + run * stride, stride)
                index, place, pause = index + run, last + size, RUN_LEAST
                continue
            look_at, pause = index + pause, min(2 * pause, RUN_PAUSE_MAX)
        place = stop + size
        index += 1
        add_start(stop)
        add_end(place)
        add_key_start(key_start)
        add_key_end(key_end)
    return place


def _run(
    data: bytes, place: int, stride: int, header: int, key_start: int, key_end: int, sequence_at: int, most: int
) -> int:
    """How many messages from `place` on have the layout of the first one: `stride` bytes, `header` of them before the value.

    Equal but for the bytes of the key and of the sequence id (from `sequence_at` on, a tag and a number), whose length is the same.
    """
    most = min(most, (len(data) - place) // stride)
    third, begins = place + 2 * stride, data[place : place + 6]
    if most < RUN_LEAST or data[third : third + 6] != begins:  # one look, as most batches without equal sizes end here
        return 0
    rows = np.frombuffer(data, np.uint8, most * stride, place).reshape(most, stride)[:, :header]
    alike = rows == rows[0]
    if key_end > 0:
        alike[:, key_start:key_end] = True
    number = rows[:, sequence_at + 1 :]
    if number.shape[1]:
        goes_on = number >= 0x80
        alike[:, sequence_at + 1 :] = goes_on == (np.arange(number.shape[1]) < number.shape[1] - 1)
    fits = alike.all(axis=1)
    return most if fits.all() else int(fits.argmin())


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
    found = Messages(data, [0], [len(data)], [index], named=None if key is None else [key])
    describe(found, 0, event_time_ms, properties, null)
    return found
