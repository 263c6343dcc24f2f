"""Topics as a stream: where a micro-batch ends, by what is there and by the limits of the options."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

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
from magnetar.pipeline.connect.broker import Goal, Topics, patiently
from magnetar.pipeline.connect.offsets import EARLIEST, Offsets, Position, from_document, ranges, to_document
from magnetar.pipeline.connect.options import ReadOptions
from magnetar.pipeline.connect.planning import RangePartition, split_all
from magnetar.pipeline.connect.raw.topic_end import Told
from magnetar.pipeline.connect.reading.columns import Columns
from magnetar.pipeline.connect.reading.limits import Limits
from magnetar.pipeline.connect.reading.range_reader import read_range

LOSS_CHECK_S: Final = 10.0
"""How often a stream looks at the ledgers of its topics: one that was closed for so long before it is deleted is known."""


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in one planner process as long as the query; `read` runs in others, to which only options and schema are sent."""

    keeps_ends = False
    """Whether it asks for ends many times a second (`Topics`)."""

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
        self._limiting: Limits | None = None
        self._acknowledger: Acknowledger | None = None
        self._goal: Goal | None = None
        self._ends: Offsets = {}
        self._checked_s: float | None = None

    @property
    def _topics(self) -> Topics:
        if self._held is None:
            self._held = Topics(self._options, keeps_ends=self.keeps_ends)
        return self._held

    @property
    def _limits(self) -> Limits:
        if self._limiting is None:
            self._limiting = Limits(self._options, self._topics)
        return self._limiting

    def initialOffset(self) -> dict[str, Any]:
        starts = self._topics.begin("latest")  # at once: the address may be wrong
        self._acknowledge(starts)
        return to_document(starts)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_messages is not None:
            return ReadMaxRows(self._options.max_messages)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._goal = patiently(self._options, lambda: self._topics.goal())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return patiently(self._options, lambda: self.latest(start, limit))

    def latest(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The same at once: raises what the client and the admin API raise while brokers do not answer."""
        starts = from_document(start)
        if self._goal is not None:
            self._acknowledge_at_once(starts)
        self._check_loss(starts)
        seen, self._ends = (
            self._ends,
            self._topics.released_ends(starts)
            if self._goal is None
            else self._topics.ends_as_planned(starts, self._goal),
        )
        self._topics.check_replaced(starts, self._ends)
        self._topics.check_seen(starts, seen, self._ends)
        # A topic that is gone keeps its place: it may come back.
        ends = starts | {topic: max(end, starts.get(topic, EARLIEST)) for topic, end in self._ends.items()}
        if not isinstance(limit, ReadAllAvailable):
            ends = ends | self._limits.ends(ranges(starts, ends))
        return to_document(self._topics.closed_by(ends, self._goal))

    def told_by(self, topics: Iterable[str]) -> list[Told]:
        """What tells when something is added to topic partitions, or there are other segments."""
        return self._topics.told_by(topics)

    def first(self, topic: str) -> Position | None:
        """Of the first message that is still there; None when there is none."""
        return patiently(self._options, lambda: self._topics.first(topic))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return to_document(self._ends) if self._ends else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        parts = ranges(from_document(start), from_document(end))
        cut = patiently(self._options, lambda: split_all(self._topics, parts, self._options.min_partitions))
        return [RangePartition(each) for each in cut]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, RangePartition):
            yield from read_range(self._options, partition.part, Columns(self._schema, self._options.connection))

    def commit(self, end: dict[str, Any]) -> None:
        if self._goal is None:
            self._acknowledge(from_document(end))

    def stop(self) -> None:
        if self._acknowledger is not None:
            self._acknowledger.close()
        if self._limiting is not None:
            self._limiting.close()
        if self._held is not None:
            self._held.close()
        self._forget()

    def _check_loss(self, starts: Offsets) -> None:
        """At the start, and where it is cheap (and may be the only way to know) again and again. Raises DataLossError."""
        now_s = time.monotonic()
        if self._checked_s is not None and (self._topics.admin is None or now_s - self._checked_s < LOSS_CHECK_S):
            return
        self._topics.check_loss(starts)
        self._checked_s = now_s

    def _acknowledge(self, offsets: Mapping[str, Position]) -> None:
        if self._options.subscription is None:
            return
        if self._acknowledger is None:
            self._acknowledger = Acknowledger(self._options.connection, self._options.subscription)
        patiently(self._options, partial(self._acknowledger.acknowledge, offsets))

    def _acknowledge_at_once(self, starts: Offsets) -> None:
        """For a query that ends by itself, `AvailableNow`.

        Spark asks where the next batch ends once the one before is in its commit log, also when there is no next one: its `commit`
        is never called for the last. It then ends this process by SIGKILL, without `stop`: the broker has to know by then.
        """
        self._acknowledge(starts)
        if self._acknowledger is not None:
            self._acknowledger.close()
