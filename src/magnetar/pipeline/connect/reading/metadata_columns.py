"""What the connector knows of each message, a column at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    TimestampType,
)

from magnetar.pipeline.connect.raw.entries import Entry
from magnetar.pipeline.connect.raw.gather import PIECE_ROWS, Piece
from magnetar.pipeline.connect.segment_order import is_segment, segment_id, whole_topic
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageIdData

MICROS_PER_MILLI: Final = 1000
Getter = Callable[[str, Entry], "Sequence[Any] | Piece"]
"""(topic partition, entry) -> a value for each of the entry's messages."""

_BATCH_INDEX, _BATCH_SIZE = b"\x20", b"\x30"
"""Tags of MessageIdData, in the order of its fields."""


def partition_of(topic: str) -> int:
    """Number of a partition, or id of a segment; -1 for a topic without partitions."""
    if is_segment(topic):
        return segment_id(topic)
    digits = topic.rpartition("-partition-")[2]
    return int(digits) if "-partition-" in topic and digits.isdigit() else -1


def shown_topic(topic: str) -> str:
    """A partition's own name; of a segment that of its scalable topic."""
    return whole_topic(topic) if is_segment(topic) else topic


class PerEntry:
    """A column that has one value for all messages of an entry: only runs of it are kept until Arrow takes them."""

    __slots__ = ("of",)

    def __init__(self, of: Callable[[str, Entry], Any]) -> None:
        self.of = of

    @staticmethod
    def joined(values: list[Any], counts: list[int], kind: pa.DataType) -> pa.Array:
        """Each value as often as its count says."""
        places = np.repeat(np.arange(len(values), dtype=np.int32), counts)
        return pa.array(values, kind).take(pa.array(places))


def _key(_topic: str, entry: Entry) -> Sequence[Any] | Piece:
    messages = entry.messages
    if messages.key_starts is not None and messages.key_ends is not None and len(messages) >= PIECE_ROWS:
        return Piece(messages.data, messages.key_starts, messages.key_ends)
    return messages.keys or [None] * len(messages)


def _event_time(_topic: str, entry: Entry) -> Sequence[Any]:
    times = entry.messages.event_times_ms
    return [None] * len(entry.messages) if times is None else [each * MICROS_PER_MILLI or None for each in times]


def _properties(_topic: str, entry: Entry) -> Sequence[Any]:
    return entry.messages.properties or [()] * len(entry.messages)


def _batch_index(_topic: str, entry: Entry) -> Sequence[Any]:
    return entry.messages.indexes


def _message_id(topic: str, entry: Entry) -> Sequence[Any]:
    """As the official clients serialize it."""
    found = MessageIdData(ledgerId=entry.ledger, entryId=entry.entry)
    partition = partition_of(topic)
    if partition >= 0 and not is_segment(topic):
        found.partition = partition
    begin = found.SerializeToString()
    if not entry.batch_size:
        return [begin] * len(entry.messages)
    begin, end = begin + _BATCH_INDEX, _BATCH_SIZE + varint(entry.batch_size)
    indexes = entry.messages.indexes
    return [begin + number + end for number in _varints(max(indexes, default=-1) + 1, indexes)]


_known_varints: list[bytes] = []


def _varints(below: int, numbers: Sequence[int]) -> Sequence[bytes]:
    """Of numbers below a bound, which is that of a batch's size."""
    _known_varints.extend(varint(number) for number in range(len(_known_varints), below))
    if isinstance(numbers, range):
        return _known_varints[numbers.start : numbers.stop : numbers.step]
    return [_known_varints[number] for number in numbers]


def varint(number: int) -> bytes:
    """A number that is not negative, as protobuf writes it."""
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


METADATA: Final[dict[str, tuple[DataType, Getter | PerEntry]]] = {
    "__key": (StringType(), _key),
    "__topic": (StringType(), PerEntry(lambda topic, _: shown_topic(topic))),
    "__messageId": (BinaryType(), _message_id),
    "__publishTime": (
        TimestampType(),
        PerEntry(lambda _, entry: entry.publish_time_ms * MICROS_PER_MILLI),
    ),
    "__eventTime": (TimestampType(), _event_time),
    "__messageProperties": (MapType(StringType(), StringType()), _properties),
    "__partition": (IntegerType(), PerEntry(lambda topic, _: partition_of(topic))),
    "__ledgerId": (LongType(), PerEntry(lambda _, entry: entry.ledger)),
    "__entryId": (LongType(), PerEntry(lambda _, entry: entry.entry)),
    "__batchIndex": (IntegerType(), _batch_index),
}
"""Behind the value or its fields, in this order. A key or event time that was not set is NULL."""

HIDDEN: Final[dict[str, tuple[DataType, Getter | PerEntry]]] = {
    "__schemaVersion": (BinaryType(), PerEntry(lambda _, entry: entry.schema_version)),
}
"""Columns that there are for who asks for them by a schema of his own."""
