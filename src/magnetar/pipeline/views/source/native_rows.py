"""Rows of a source that a task reads and decodes by itself, in native code, for aggregates that DuckDB can begin there.

Only what is read as Spark reads it, by which the rest is decoded: a message that might not be is an UnreadRowsError, and the epoch's rows
are read again through Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from magnetar.pipeline.connect.options import ReadOptions
from magnetar.pipeline.connect.reading.columns import Columns, schema_for
from magnetar.pipeline.connect.reading.range_reader import read_range
from magnetar.pipeline.sql.statements import CreateSource
from magnetar.pipeline.sql.types import spark_type

if TYPE_CHECKING:
    from magnetar.pipeline.operators.native_partials import NativePartials


class UnreadRowsError(Exception):
    """Rows that have to be read through Spark. Nobody sees it: the epoch does so."""


class NativeRows(Protocol):
    """The rows of a source with the columns that an aggregate has, for a task."""

    def grouped(self, parts: Sequence[Any], partials: NativePartials) -> Iterator[pa.Table]:
        """Partial results of the rows in these parts, some rows' after the other. Raises UnreadRowsError."""
        ...


@dataclass(frozen=True)
class NativeRead:
    """What tasks read in an epoch: each one these parts."""

    rows: NativeRows
    tasks: tuple[tuple[Any, ...], ...]

    @staticmethod
    def of(rows: NativeRows, parts: Sequence[Any], tasks: int) -> NativeRead:
        """Shared out among at most so many tasks."""
        count = max(1, min(tasks, len(parts)))
        return NativeRead(rows, tuple(tuple(parts[number::count]) for number in range(count)))

    @property
    def parts(self) -> list[Any]:
        """All of them."""
        return [part for each in self.tasks for part in each]


TYPES: Final = {
    "STRING": pa.string(),
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "SMALLINT": pa.int16(),
    "BOOLEAN": pa.bool_(),
    "DOUBLE": pa.float64(),
}
"""Types of columns that the JSON reader takes as Spark does, or refuses; a double only where nobody reads it."""

PLAIN_BYTES: Final = 1_000
"""Shorter messages cannot reach what Jackson allows: numbers of 1,000 digits, 1,000 levels; names of 50,000 characters come later."""
NAME_BYTES: Final = 50_000
_LONG_NUMBER: Final = "[0-9]{900}"


@dataclass(frozen=True)
class JsonMessages:
    """Messages of a topic, of FORMAT PLAIN ENCODE JSON. `schema`: the source's columns; `names`: by the aggregate's name, the source's."""

    options: ReadOptions
    schema: pa.Schema
    names: Mapping[str, str]

    def grouped(self, parts: Sequence[Any], partials: NativePartials) -> Iterator[pa.Table]:
        """As NativeRows."""
        fields = [pa.field(name, self.schema.field(old).type) for name, old in self.names.items()]
        return partials.of_batches(pa.schema(fields), self._batches(parts))

    def _batches(self, parts: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        raw = schema_for(["value"])
        for part in parts:
            for batch in read_range(self.options, part, Columns(raw, self.options.connection)):
                rows = json_rows(batch.column(0), self.schema)
                columns = [rows.column(old) for old in self.names.values()]
                yield from pa.table(columns, names=list(self.names)).to_batches()


def json_messages(source: CreateSource, options: ReadOptions, names: Mapping[str, str]) -> JsonMessages | None:
    """How a task reads a source's messages by itself; None where Spark has to."""
    plain = source.format.format == "PLAIN" and source.format.encode == "JSON"
    if not plain or source.includes or not source.columns:
        return None
    fields = []
    for column in source.columns:
        kind = TYPES.get(spark_type(column.type or "VARCHAR"))
        if kind is None or column.generated is not None:
            return None
        fields.append(pa.field(column.name, kind))
    if not set(names.values()) <= {each.name for each in fields}:
        return None
    return JsonMessages(options, pa.schema(fields), dict(names))


def json_rows(messages: pa.Array, schema: pa.Schema) -> pa.Table:
    """A row for each message (bytes), with these columns. Raises UnreadRowsError unless every one is surely what Spark reads in it."""
    lengths = pc.binary_length(messages)
    longest = pc.max(lengths).as_py() or 0
    if messages.null_count or longest > NAME_BYTES:
        raise UnreadRowsError
    try:
        texts = messages.cast(pa.string())
        # One object or more in each, so that as many rows as messages are one of each.
        if not pc.all(pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))).as_py():
            raise UnreadRowsError
        if _names_infinity(texts):
            raise UnreadRowsError
        if longest > PLAIN_BYTES and _may_exceed(texts.filter(pc.greater(lengths, PLAIN_BYTES))):
            raise UnreadRowsError
        lines = pc.binary_join(pa.LargeListArray.from_arrays(pa.array([0, len(texts)], pa.int64()), texts), "\n")
        data = lines[0].as_buffer()
        found = pj.read_json(
            pa.BufferReader(data),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowException as error:
        raise UnreadRowsError from error
    if found.num_rows != len(messages):
        raise UnreadRowsError
    return found


def _names_infinity(texts: pa.Array) -> bool:
    """Whether `Inf` may stand for a number, which Jackson spells otherwise."""
    found = texts.filter(pc.match_substring(texts, "Inf"))
    return len(found) > 0 and bool(pc.any(pc.match_substring_regex(found, r"[:,\[]\s*[-+]?Inf")).as_py())


def _may_exceed(texts: pa.Array) -> bool:
    """Whether there may be levels or digits that Jackson refuses."""
    levels = pc.add(pc.count_substring(texts, "{"), pc.count_substring(texts, "["))
    if pc.max(levels).as_py() >= PLAIN_BYTES:
        return True
    return bool(pc.any(pc.match_substring_regex(texts, _LONG_NUMBER)).as_py())
