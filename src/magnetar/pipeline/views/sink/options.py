"""What CREATE SINK says: where to, in which form, and which columns are key, event time and properties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

from magnetar.pipeline.connect.errors import SchemaError, SinkError
from magnetar.pipeline.connect.options import WriteOptions, from_risingwave, write_options
from magnetar.pipeline.connect.protobuf import MessageType, from_location
from magnetar.pipeline.connect.writing.protobuf_rows import encoder
from magnetar.pipeline.sql.statements import CreateSink

CONNECTORS: Final = ("pulsar", "magnetar")
PRIMARY_KEY: Final = "primary_key"
EVENT_TIME: Final = "event.time.column"
PROPERTIES: Final = "properties.columns"
REGISTER: Final = "schema.register"
SNAPSHOT: Final = "snapshot"
"""Whether a sink over a view that was there before it begins with the view's rows, as inserts (the default), or with what changes."""
MESSAGE: Final = "message"
LOCATION: Final = "schema.location"
"""Of ENCODE PROTOBUF: the message, and the file of its descriptor."""
OWN: Final = ("connector", PRIMARY_KEY, EVENT_TIME, PROPERTIES, REGISTER, SNAPSHOT, MESSAGE, LOCATION)
"""Options that are not the connector's."""


@dataclass(frozen=True)
class Sink:
    """One sink over one view's changelog. `view`: under which name the manifest holds that changelog."""

    name: str
    view: str
    schema: pa.Schema
    form: Literal["PLAIN", "UPSERT", "DEBEZIUM"]
    encode: Literal["JSON", "AVRO", "PROTOBUF"]
    write: WriteOptions
    key: tuple[str, ...] = ()
    event_time: str | None = None
    properties: tuple[str, ...] = ()
    register: bool = False
    snapshot: bool = True
    message: MessageType | None = None
    """Of ENCODE PROTOBUF."""


def sink_of(statement: CreateSink, schema: pa.Schema, key: tuple[str, ...], append_only: bool) -> Sink:
    """`schema`, `key` and `append_only` of the view it reads from (without `_change`). Raises SinkError, OptionError.

    Without FORMAT a view that only ever adds rows is sent as PLAIN JSON, another one as UPSERT JSON.
    """
    options = {name.lower(): value for name, value in statement.options.items()}
    if options.get("connector") not in CONNECTORS:
        raise SinkError(f"sink {statement.name}: this connector does not exist; use connector = 'pulsar' or 'magnetar'")
    given = statement.format
    form = given.format if given else "PLAIN" if append_only else "UPSERT"
    encode = given.encode if given else "JSON"
    if encode == "BYTES" or encode == "CSV":
        raise SinkError(f"sink {statement.name}: ENCODE {encode} is for sources; write ENCODE JSON, AVRO or PROTOBUF")
    if given:
        options |= {name.lower(): value for name, value in given.options.items()}
    if options.get(SNAPSHOT, "true").lower() not in ("true", "false"):
        raise SinkError(f"sink {statement.name}: {SNAPSHOT} is {options[SNAPSHOT]!r}; give 'true' or 'false'")
    write = write_options(from_risingwave({name: value for name, value in options.items() if name not in OWN}))
    if write.topic is None:
        raise SinkError(f"sink {statement.name}: WITH names no topic; add topic = '...'")
    message = _message(statement, options, form, schema) if encode == "PROTOBUF" else None
    event_time = _columns(statement, options, EVENT_TIME, schema)
    if event_time and not pa.types.is_timestamp(schema.field(event_time[0]).type):
        raise SinkError(f"sink {statement.name}: {EVENT_TIME} is {schema.field(event_time[0]).type}, not a timestamp")
    return Sink(
        name=statement.name,
        view=statement.source if isinstance(statement.source, str) else statement.name,
        schema=schema,
        form=form,
        encode=encode,
        write=write,
        key=_key(statement, options, schema, form, key, append_only),
        event_time=event_time[0] if event_time else None,
        properties=_columns(statement, options, PROPERTIES, schema),
        register=encode != "JSON" or options.get(REGISTER, "false").lower() == "true",
        snapshot=options.get(SNAPSHOT, "true").lower() == "true",
        message=message,
    )


def _message(statement: CreateSink, options: Mapping[str, str], form: str, schema: pa.Schema) -> MessageType:
    """Checked against the columns that are sent."""
    if form == "DEBEZIUM":
        raise SinkError(f"sink {statement.name}: FORMAT DEBEZIUM is an envelope of its own; write ENCODE JSON or AVRO")
    if MESSAGE not in options or LOCATION not in options:
        raise SinkError(
            f"sink {statement.name}: write ENCODE PROTOBUF (message = 'package.Name', schema.location = 'file:///path/of/descriptors')"
        )
    try:
        found = from_location(options[LOCATION], options[MESSAGE])
        encoder(found, schema)
    except SchemaError as error:
        raise SinkError(f"sink {statement.name}: {error}") from None
    return found


def _key(
    statement: CreateSink,
    options: Mapping[str, str],
    schema: pa.Schema,
    form: str,
    key: tuple[str, ...],
    append_only: bool,
) -> tuple[str, ...]:
    """The message key's columns: primary_key, else the view's key where rows are replaced."""
    wanted = _columns(statement, options, PRIMARY_KEY, schema)
    if form == "PLAIN" or (append_only and wanted):
        return wanted
    usable = tuple(name for name in key if name in schema.names)
    if wanted and set(wanted) != set(key):
        raise SinkError(
            f"sink {statement.name}: {PRIMARY_KEY} is ({', '.join(wanted)}), but the rows change by ({', '.join(key)}); "
            "sink a view that is grouped by those columns"
        )
    if not (wanted or usable) or usable != key:
        raise SinkError(
            f"sink {statement.name}: FORMAT {form} needs a key among its columns; select ({', '.join(key)}) too, or give {PRIMARY_KEY}"
        )
    return wanted or usable


def _columns(statement: CreateSink, options: Mapping[str, str], option: str, schema: pa.Schema) -> tuple[str, ...]:
    by_lower = {name.lower(): name for name in schema.names}
    found = []
    for name in filter(None, (part.strip() for part in options.get(option, "").split(","))):
        if name.lower() not in by_lower:
            raise SinkError(f"sink {statement.name}: {option} names {name}; there are {', '.join(schema.names)}")
        found.append(by_lower[name.lower()])
    return tuple(found)
