"""Values of AVRO and JSON topics as rows: each by the schema version it was written with, projected onto the columns that are wanted."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.types as at

from magnetar.pipeline.connect.errors import SchemaError
from magnetar.pipeline.connect.options import Connection
from magnetar.pipeline.connect.registered import registered, version_number

Row = dict[str, Any]
_EPOCH: Final = datetime(1970, 1, 1)
_json: Final = msgspec.json.Decoder()


class RecordValues:
    """Reads values of one connection's topics; `schema` is what is wanted. A field that a version does not have is NULL."""

    def __init__(self, connection: Connection, schema: pa.Schema) -> None:
        self._connection = connection
        self._fields = list(schema)
        self._struct = pa.struct(self._fields)
        self._readers: dict[tuple[str, int], Callable[[bytes], Row]] = {}

    def rows(
        self, topic: str, version: bytes | None, values: Sequence[bytes | None]
    ) -> tuple[pa.Array, list[str | None]]:
        """(a struct for each value, what is wrong with it or None). What is wrong is NULL, as is a value that is NULL."""
        read = self._reader(topic, version_number(version))
        found: list[Row | None] = []
        problems: list[str | None] = []
        for value in values:
            row, problem = None, None
            if value is not None:
                try:
                    row = read(value)
                except Exception as error:  # whatever a decoder raises at bytes that are none of its own
                    problem = f"{type(error).__name__}: {error}"
            found.append(row)
            problems.append(problem)
        try:
            return pa.array(found, self._struct), problems
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return self._one_by_one(found, problems)

    def _one_by_one(self, rows: list[Row | None], problems: list[str | None]) -> tuple[pa.Array, list[str | None]]:
        for place, row in enumerate(rows):
            try:
                pa.array([row], self._struct)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                rows[place], problems[place] = None, f"a field has another type: {error}"
        return pa.array(rows, self._struct), problems

    def _reader(self, topic: str, version: int) -> Callable[[bytes], Row]:
        if (topic, version) not in self._readers:
            found = registered(self._connection, topic, version)
            if found is None or not found.is_record:
                raise SchemaError(
                    f"{topic} has no registered schema with fields; register one or use FORMAT PLAIN ENCODE BYTES"
                )
            self._readers[topic, version] = _avro(found.definition) if found.kind == "AVRO" else self._json_reader()
        return self._readers[topic, version]

    def _json_reader(self) -> Callable[[bytes], Row]:
        def read(value: bytes) -> Row:
            row = _json.decode(value)
            if not isinstance(row, dict):
                raise ValueError("this is not a JSON object")
            return {field.name: _of_json(row.get(field.name), field.type) for field in self._fields}

        return read


def _avro(definition: str) -> Callable[[bytes], Row]:
    import fastavro

    parsed = fastavro.parse_schema(json.loads(definition))

    def read(value: bytes) -> Row:
        stream = io.BytesIO(value)
        row = fastavro.schemaless_reader(stream, parsed, None)
        if stream.tell() != len(value):
            raise ValueError(f"{len(value) - stream.tell()} bytes are left behind the record")
        if not isinstance(row, dict):
            raise ValueError("this is not a record")
        return row

    return read


def _of_json(value: Any, kind: pa.DataType) -> Any:
    """What JSON spells otherwise: times as numbers (milliseconds, or microseconds from 10^14 on) and as text."""
    if value is None:
        return None
    if at.is_timestamp(kind):
        if isinstance(value, int):
            since = timedelta(microseconds=value if abs(value) >= 10**14 else value * 1000)
            return (_EPOCH + since).replace(tzinfo=UTC if kind.tz else None)
        parsed = datetime.fromisoformat(value)
        return parsed if kind.tz or parsed.tzinfo is None else parsed.astimezone(UTC).replace(tzinfo=None)
    if at.is_date(kind):
        return date(1970, 1, 1) + timedelta(days=value) if isinstance(value, int) else date.fromisoformat(value)
    if at.is_floating(kind) and isinstance(value, int):
        return float(value)
    if at.is_binary(kind) and isinstance(value, str):
        return value.encode()
    if at.is_struct(kind) and isinstance(value, dict):
        return {
            kind.field(i).name: _of_json(value.get(kind.field(i).name), kind.field(i).type)
            for i in range(kind.num_fields)
        }
    return value
