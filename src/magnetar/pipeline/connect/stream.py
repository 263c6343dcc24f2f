"""Topics as a stream: where a micro-batch ends, by what is there and by the limits of the options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from magnetar.pipeline.connect.acknowledge import Acknowledger
from magnetar.pipeline.connect.broker import Topics
from magnetar.pipeline.connect.columns import Columns
from magnetar.pipeline.connect.offsets import EARLIEST, Offsets, Position, Range, from_document, ranges, to_document
from magnetar.pipeline.connect.options import ReadOptions
from magnetar.pipeline.connect.planning import RangePartition, split_all
from magnetar.pipeline.connect.range_reader import read_entries, read_range


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in one planner process as long as the query; `read` runs in others, to which only options and schema are sent."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        Columns(schema, options.connection)
        self._forget()

    def __getstate__(self) -> tuple[ReadOptions, StructType]:
        return self._options, self._schema

    def __setstate__(self, state: tuple[ReadOptions, StructType]) -> None:
        self._options, self._schema = state
        self._forget()

    def _forget(self) -> None:
        self._held: Topics | None = None
        self._acknowledger: Acknowledger | None = None
        self._goal: Offsets | None = None
        self._ends: Offsets = {}
        self._checked = False

    @property
    def _topics(self) -> Topics:
        if self._held is None:
            self._held = Topics(self._options)
        return self._held

    def initialOffset(self) -> dict[str, Any]:
        starts = self._topics.starts(self._topics.partitions(), "latest")
        self._acknowledge(starts)
        return to_document(starts)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_messages is not None:
            return ReadMaxRows(self._options.max_messages)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._goal = self._topics.ends(self._topics.partitions())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        starts = from_document(start)
        if not self._checked:
            self._topics.check_loss(starts)
            self._checked = True
        self._ends = self._goal if self._goal is not None else self._topics.ends(self._topics.partitions())
        # A topic that is gone keeps its place: it may come back.
        ends = starts | {topic: max(end, starts.get(topic, EARLIEST)) for topic, end in self._ends.items()}
        if not isinstance(limit, ReadAllAvailable):
            ends = ends | self._limited(ranges(starts, ends))
        return to_document(ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return to_document(self._ends) if self._ends else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        parts = ranges(from_document(start), from_document(end))
        return [RangePartition(each) for each in split_all(self._topics, parts, self._options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, RangePartition):
            yield from read_range(self._options, partition.part, Columns(self._schema, self._options.connection))

    def commit(self, end: dict[str, Any]) -> None:
        self._acknowledge(from_document(end))

    def stop(self) -> None:
        if self._acknowledger is not None:
            self._acknowledger.close()
        if self._held is not None:
            self._held.close()
        self._forget()

    def _acknowledge(self, offsets: Mapping[str, Position]) -> None:
        if self._options.subscription is None:
            return
        if self._acknowledger is None:
            self._acknowledger = Acknowledger(self._options.connection, self._options.subscription)
        self._acknowledger.acknowledge(offsets)

    def _limited(self, parts: list[Range]) -> Offsets:
        """Ends within maxMessagesPerTrigger and maxBytesPerTrigger, counted by reading; each topic gets a fair share.

        What one topic does not use is left to those behind it. At least one message is taken, however large.
        """
        rows, size = self._options.max_messages, self._options.max_bytes
        found: Offsets = {}
        taken = False
        for number, part in enumerate(parts):
            left = len(parts) - number
            end, used_rows, used_size = self._scan(
                part, None if rows is None else -(-rows // left), None if size is None else -(-size // left), not taken
            )
            found[part.topic] = end
            taken = taken or used_rows > 0
            rows = None if rows is None else rows - used_rows
            size = None if size is None else max(size - used_size, 0)
        return found

    def _scan(self, part: Range, rows: int | None, size: int | None, at_least_one: bool) -> tuple[Position, int, int]:
        """(end, messages, bytes) from the start of a range within a share of the limits."""
        end, count, total = part.start, 0, 0
        for entry in read_entries(self._options, part) if rows != 0 else ():
            found = entry.messages
            for index, first, last in zip(found.indexes, found.starts, found.ends, strict=True):
                length = last - first
                over = (rows is not None and count >= rows) or (size is not None and total + length > size)
                if over and not (at_least_one and count == 0):
                    return end, count, total
                end = Position(entry.ledger, entry.entry, index + 1)
                count, total = count + 1, total + length
        return (part.end if rows != 0 else end), count, total
