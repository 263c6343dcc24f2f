"""The data source that Spark finds under the names `magnetar` and `pulsar`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    EqualNullSafe,
    EqualTo,
    Filter,
    In,
    InputPartition,
)
from pyspark.sql.types import StructType

from magnetar.pipeline.connect.broker import Topics
from magnetar.pipeline.connect.errors import OptionError
from magnetar.pipeline.connect.offsets import ranges
from magnetar.pipeline.connect.options import ReadOptions, frame_options, read_options
from magnetar.pipeline.connect.planning import RangePartition, split_all
from magnetar.pipeline.connect.reading.columns import Columns, full_schema
from magnetar.pipeline.connect.reading.metadata_columns import partition_of, shown_topic
from magnetar.pipeline.connect.reading.range_reader import read_range
from magnetar.pipeline.connect.registered import record_fields
from magnetar.pipeline.connect.stream import TopicStreamReader
from magnetar.pipeline.connect.writing.sink import TopicStreamWriter, TopicWriter


class MagnetarDataSource(DataSource):
    """`spark.read.format("magnetar")`."""

    @classmethod
    def name(cls) -> str:
        return "magnetar"

    def schema(self) -> StructType:
        return full_schema(record_fields(read_options(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        # Spark refuses a reader that has `pushFilters` while its own setting for that is off.
        return PrunedTopicReader(options, schema) if options.pushdown else TopicReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TopicStreamReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise OptionError("a topic cannot be overwritten: use mode('append')")
        return TopicWriter(frame_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        if overwrite:
            raise OptionError("a topic cannot be overwritten: use outputMode('append') or 'update'")
        return TopicStreamWriter(frame_options(self.options), schema)


class PulsarDataSource(MagnetarDataSource):
    """The same by the name that jobs for Apache Pulsar use."""

    @classmethod
    def name(cls) -> str:
        return "pulsar"


class TopicReader(DataSourceReader):
    """A batch read: the range is fixed when Spark plans, each partition's piece is a task or several."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        Columns(schema, options.connection)

    def partitions(self) -> Sequence[InputPartition]:
        topics = Topics(self._options)
        topics.check_there()
        every = topics.partitions()
        names = [name for name in topics.within(every) if self.is_wanted(name)]
        starts = topics.check_loss(topics.starts(names, "earliest", every))
        ends = topics.ends(names)
        wanted = topics.resolve(names, self._options.ending, "endingOffsets", "latest", every)
        if self._options.ending_time_ms is not None:
            wanted = topics.at_times(names, self._options.ending_time_ms, "latest")
        topics.close()
        parts = ranges(starts, {name: min(ends[name], wanted[name]) for name in names})
        return [RangePartition(each) for each in split_all(topics, parts, self._options.min_partitions)]

    def is_wanted(self, topic: str) -> bool:
        """Whether any row of a topic partition may be asked for."""
        return True

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Without partitions Spark runs one task, with None.
        if isinstance(partition, RangePartition):
            yield from read_range(self._options, partition.part, Columns(self._schema, self._options.connection))


class PrunedTopicReader(TopicReader):
    """With `__topic` and `__partition` compared by `=` and IN: partitions that can have no such row are not looked at."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._allowed: list[tuple[bool, frozenset[Any]]] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for condition in filters:
            column = ".".join(getattr(condition, "attribute", ()))
            if column in ("__topic", "__partition"):
                if isinstance(condition, EqualTo | EqualNullSafe):
                    self._allowed.append((column == "__topic", frozenset([condition.value])))
                elif isinstance(condition, In):
                    self._allowed.append((column == "__topic", frozenset(condition.value)))
        return filters  # Spark checks them again

    def is_wanted(self, topic: str) -> bool:
        return all(
            (shown_topic(topic) if by_name else partition_of(topic)) in values for by_name, values in self._allowed
        )
