"""Changes as messages: which of them a sink's form sends, in which order, with which key and value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import _pulsar
import pyarrow as pa

from magnetar.pipeline.connect.protobuf import to_schema
from magnetar.pipeline.connect.writing.encoding import Encode, Encoded, avro, json_bytes, json_schema
from magnetar.pipeline.connect.writing.protobuf_rows import encoder
from magnetar.pipeline.errors import ChangelogError
from magnetar.pipeline.operators.changelog import CHANGE, DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE
from magnetar.pipeline.views.sink.options import Sink

Row = dict[str, Any]


class SinkMessage(NamedTuple):
    """`value` None: the row of the key is gone."""

    key: str | None
    value: bytes | None
    event_time_ms: int | None
    properties: dict[str, str] | None


class MessageMaker:
    """Of one sink. The messages of a changelog file depend on the file alone, in number, order and bytes."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._encode, schema = _codec(sink)
        self.schema: Encoded | None = schema if sink.register else None

    def messages(self, changes: pa.Table) -> Iterator[SinkMessage]:
        """Raises ChangelogError when an update has no row before it, or the other way round."""
        kinds = changes.column(CHANGE).to_pylist()
        rows = changes.select(self._sink.schema.names).to_pylist(maps_as_pydicts="strict")
        pairs = zip(kinds, rows, strict=True)
        yield from self._debezium(pairs) if self._sink.form == "DEBEZIUM" else self._rows(pairs)

    def _rows(self, pairs: Iterable[tuple[int, Row]]) -> Iterator[SinkMessage]:
        upsert = self._sink.form == "UPSERT"
        for kind, row in pairs:
            if kind in (INSERT, UPDATE_AFTER):
                yield self._message(row, self._encode(row))
            elif kind == DELETE and upsert:
                yield self._message(row, None)

    def _debezium(self, pairs: Iterable[tuple[int, Row]]) -> Iterator[SinkMessage]:
        before: dict[bytes, Row] = {}
        for kind, row in pairs:
            if kind == INSERT:
                yield self._envelope(row, None, row, "c")
            elif kind == DELETE:
                yield self._envelope(row, row, None, "d")
            elif kind == UPDATE_BEFORE:
                before[self._identity(row)] = row
            else:
                old = before.pop(self._identity(row), None)
                if old is None:
                    raise ChangelogError(f"sink {self._sink.name}: an update comes without the row before it")
                yield self._envelope(row, old, row, "u")
        if before:
            raise ChangelogError(f"sink {self._sink.name}: an update comes without the row after it")

    def _identity(self, row: Row) -> bytes:
        return json_bytes([row[name] for name in self._sink.key])

    def _envelope(self, row: Row, before: Row | None, after: Row | None, op: str) -> SinkMessage:
        return self._message(row, self._encode({"before": before, "after": after, "op": op}))

    def _message(self, row: Row, value: bytes | None) -> SinkMessage:
        sink = self._sink
        at = row[sink.event_time] if sink.event_time else None
        properties = {name: key_text(row[name]) for name in sink.properties if row[name] is not None}
        return SinkMessage(message_key(row, sink.key), value, None if at is None else _millis(at), properties or None)


def message_key(row: Row, key: tuple[str, ...]) -> str | None:
    """One column: its text. Several: a JSON object. So does FORMAT UPSERT read it back."""
    if not key:
        return None
    if len(key) == 1:
        return key_text(row[key[0]])
    return json_bytes({name: row[name] for name in key}).decode()


def key_text(value: Any) -> str:
    """What stands for a value where only text can: JSON's text, of strings without the quotes."""
    if isinstance(value, str):
        return value
    return json_bytes(value).decode().strip('"')


def _millis(at: datetime) -> int:
    whole = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    since = whole - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def _codec(sink: Sink) -> tuple[Encode, Encoded | None]:
    name = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in sink.name)
    schema = sink.schema
    if sink.form == "DEBEZIUM":
        row = pa.struct(list(sink.schema))
        schema = pa.schema([("before", row), ("after", row), ("op", pa.string())])
    if sink.encode == "AVRO":
        return avro(schema, name)
    if sink.message is not None:
        return encoder(sink.message, schema), Encoded(_pulsar.SchemaType.PROTOBUF_NATIVE, to_schema(sink.message))
    return json_bytes, json_schema(schema, name) if sink.register else None
