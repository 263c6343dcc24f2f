"""The data source that Spark finds under the names `magnetar` and `pulsar`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from magnetar.pipeline.connect.broker import Topics
from magnetar.pipeline.connect.columns import Columns, full_schema
from magnetar.pipeline.connect.errors import OptionError
from magnetar.pipeline.connect.offsets import ranges
from magnetar.pipeline.connect.options import ReadOptions, read_options, write_options
from magnetar.pipeline.connect.planning import RangePartition, split_all
from magnetar.pipeline.connect.range_reader import read_range
from magnetar.pipeline.connect.registered import record_fields
from magnetar.pipeline.connect.sink import TopicStreamWriter, TopicWriter
from magnetar.pipeline.connect.stream import TopicStreamReader


class MagnetarDataSource(DataSource):
    """`spark.read.format("magnetar")`."""

    @classmethod
    def name(cls) -> str:
        return "magnetar"

    def schema(self) -> StructType:
        return full_schema(record_fields(read_options(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        return TopicReader(read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TopicStreamReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise OptionError("a topic cannot be overwritten: use mode('append')")
        return TopicWriter(write_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        if overwrite:
            raise OptionError("a topic cannot be overwritten: use outputMode('append') or 'update'")
        return TopicStreamWriter(write_options(self.options), schema)


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
        names = topics.partitions()
        starts = topics.check_loss(topics.starts(names, "earliest"))
        ends = topics.ends(names)
        wanted = topics.resolve(names, self._options.ending, "endingOffsets", "latest")
        if self._options.ending_time_ms is not None:
            wanted = {name: topics.at_time(name, self._options.ending_time_ms) for name in names}
        topics.close()
        parts = ranges(starts, {name: min(ends[name], wanted[name]) for name in names})
        return [RangePartition(each) for each in split_all(topics, parts, self._options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Without partitions Spark runs one task, with None.
        if isinstance(partition, RangePartition):
            yield from read_range(self._options, partition.part, Columns(self._schema, self._options.connection))
