"""Messages as columns: the schema that `load()` shows, and Arrow batches out of entries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StructField, StructType

from magnetar.pipeline.connect.errors import OptionError, SchemaError
from magnetar.pipeline.connect.options import Connection
from magnetar.pipeline.connect.raw.entries import Entry
from magnetar.pipeline.connect.raw.gather import PIECE_ROWS, Piece, column
from magnetar.pipeline.connect.reading.metadata_columns import HIDDEN, METADATA, Getter, PerEntry
from magnetar.pipeline.connect.reading.record_values import RecordValues


def _value(_topic: str, entry: Entry) -> Sequence[Any] | Piece:
    messages = entry.messages
    if messages.nulls or len(messages) < PIECE_ROWS:
        return messages.values()
    return Piece(messages.data, messages.starts, messages.ends)


def full_schema(fields: list[StructField] | None = None) -> StructType:
    """`value` or the registered schema's fields, then the metadata."""
    columns = fields if fields is not None else [StructField("value", BinaryType())]
    return StructType([*columns, *(StructField(name, kind) for name, (kind, _) in METADATA.items())])


def schema_for(names: Collection[str]) -> StructType:
    """Of these columns of the connector, in its own order."""
    known = {"value": BinaryType(), **{name: kind for name, (kind, _) in (METADATA | HIDDEN).items()}}
    return StructType([StructField(name, kind) for name, kind in known.items() if name in names])


class Columns:
    """Turns entries into record batches of a schema, which may be any choice of the columns in any order.

    Other columns than the connector's own are fields of the topic's registered schema, read by the version of each entry.
    """

    __slots__ = ("_chunks", "_columns", "_counts", "_pending", "_places", "_record", "rows", "schema")

    def __init__(self, schema: StructType, connection: Connection) -> None:
        self.schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        others = [field for field in schema.fields if field.name not in METADATA and field.name not in HIDDEN]
        plain = len(others) == 1 and others[0].name == "value" and isinstance(others[0].dataType, BinaryType)
        self._places = {} if plain else {field.name: place for place, field in enumerate(others)}
        wanted = pa.schema([self.schema.field(name) for name in self._places])
        self._record = RecordValues(connection, wanted) if self._places else None
        self._columns = [None if field.name in self._places else _getter(field) for field in schema.fields]
        self._clear()

    def add(self, topic: str, entry: Entry) -> None:
        fields = self._fields(topic, entry)
        for place, (values, chunks, getter) in enumerate(zip(self._pending, self._chunks, self._columns, strict=True)):
            if isinstance(getter, PerEntry):
                values.append(getter.of(topic, entry))
                continue
            found = fields[self._places[self.schema.names[place]]] if getter is None else getter(topic, entry)
            if isinstance(found, pa.Array | Piece):
                if values:
                    chunks.append(pa.array(values, self.schema.types[place]))
                    values.clear()
                chunks.append(found)
            else:
                values += found
        self._counts.append(len(entry.messages))
        self.rows += len(entry.messages)

    def _fields(self, topic: str, entry: Entry) -> list[pa.Array]:
        """Of the registered schema. SchemaError names the message that does not fit."""
        if self._record is None:
            return []
        rows, problems = self._record.rows(topic, entry.schema_version, entry.messages.values())
        for index, problem in zip(entry.messages.indexes, problems, strict=True):
            if problem is not None:
                raise SchemaError(
                    f"{topic} {entry.ledger}:{entry.entry}:{index} does not fit its schema: {problem}; read it as bytes with "
                    ".schema('value binary')"
                )
        fields: list[pa.Array] = rows.flatten()
        return fields

    def batch(self) -> pa.RecordBatch:
        """What was added since the last one."""
        arrays = [
            PerEntry.joined(values, self._counts, kind)
            if isinstance(getter, PerEntry)
            else _joined(values, chunks, kind)
            for values, chunks, kind, getter in zip(
                self._pending, self._chunks, self.schema.types, self._columns, strict=True
            )
        ]
        rows = self.rows
        self._clear()
        if not arrays:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _clear(self) -> None:
        self._pending: list[list[Any]] = [[] for _ in self._columns]
        self._chunks: list[list[pa.Array | Piece]] = [[] for _ in self._columns]
        self._counts: list[int] = []
        self.rows = 0


def _joined(values: list[Any], chunks: list[pa.Array | Piece], kind: pa.DataType) -> pa.Array:
    if values or not chunks:
        chunks = [*chunks, pa.array(values, type=kind)]
    arrays: list[pa.Array] = []
    for is_piece, group in groupby(chunks, lambda each: isinstance(each, Piece)):
        parts = list(group)
        arrays += [column(parts, kind)] if is_piece else parts
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _getter(field: StructField) -> Getter | PerEntry:
    if field.name == "value" and isinstance(field.dataType, BinaryType):
        return _value
    known = METADATA.get(field.name) or HIDDEN.get(field.name)
    if known is None or known[0] != field.dataType:
        wanted = f"its type is {known[0].simpleString()}" if known else f"there are value and {', '.join(METADATA)}"
        raise OptionError(f"the schema asks for a column {field.name} {field.dataType.simpleString()}; {wanted}")
    return known[1]
