"""The schemas that are registered with a topic, and their fields as Spark's types."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import pulsar
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from magnetar.pipeline.connect.broker import Topics, shared_client
from magnetar.pipeline.connect.errors import OptionError, SchemaError
from magnetar.pipeline.connect.options import Connection, ReadOptions
from magnetar.pipeline.connect.raw.connection import RawConnectionError, connect
from magnetar.pipeline.connect.segment_order import is_segment
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, Schema, ServerError

LATEST: Final = -1
_PLAIN: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "bytes": BinaryType(),
    "enum": StringType(),
    "fixed": BinaryType(),
}
_LOGICAL: Final[dict[str, DataType]] = {
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
    "local-timestamp-millis": TimestampNTZType(),
    "local-timestamp-micros": TimestampNTZType(),
    "uuid": StringType(),
}


@dataclass(frozen=True, slots=True)
class Registered:
    """`kind`: Pulsar's name of the type, AVRO or JSON among others. `definition`: an Avro record for these two."""

    kind: str
    definition: str

    @property
    def is_record(self) -> bool:
        """Whether its values have fields."""
        return self.kind in ("AVRO", "JSON") and json.loads(self.definition).get("type") == "record"

    def fields(self) -> list[StructField]:
        """Raises SchemaError for a type that Spark does not have."""
        record = _spark(json.loads(self.definition), {})
        assert isinstance(record, StructType)
        return list(record.fields)


_held: dict[tuple[Connection, str, int], Registered | None] = {}


def registered(connection: Connection, topic: str, version: int = LATEST) -> Registered | None:
    """Of a version, None when there is no schema. A version never changes and is asked for once a process."""
    key = (connection, topic, version)
    if version == LATEST or key not in _held:
        _held[key] = _ask(connection, topic, version)
    return _held[key]


def record_fields(options: ReadOptions) -> list[StructField] | None:
    """The columns that the registered schema gives; None where there is the value as a whole. Asks the broker.

    Raises OptionError when the topics do not have one schema in common.
    """
    if options.allow_different_schemas:
        return None
    topics = Topics(options).partitions(create=False)
    found = {registered(options.connection, topic) for topic in topics}
    records = [each for each in found if each is not None and each.is_record]
    if not records:
        return None
    if len(found) > 1:
        raise OptionError(
            "the topics have different schemas: read them apart, or set allowDifferentTopicSchemas=true for the value as bytes"
        )
    fields = records[0].fields()
    if taken := [field.name for field in fields if field.name.startswith("__")]:
        raise SchemaError(
            f"the schema's field {taken[0]} may be a column of the connector: read .schema('value binary') instead"
        )
    return fields


def version_number(version: bytes | None) -> int:
    """Of the bytes in a message, which are a big-endian number."""
    return LATEST if not version else int.from_bytes(version, "big", signed=True)


def _ask(connection: Connection, topic: str, version: int) -> Registered | None:
    if is_segment(topic):
        return _of_segment(connection, topic, version)
    try:
        found = shared_client(connection)._client.get_schema_info(topic, version)
    except pulsar.PulsarException as error:
        if "NotFound" in type(error).__name__ or "NotFound" in str(error):
            return None
        raise SchemaError(f"{topic}: its schema cannot be read: {error}; check that reading it is allowed") from error
    kind = str(found.schema_type()).rpartition(".")[2]
    return Registered(kind, found.schema())


def _of_segment(connection: Connection, topic: str, version: int) -> Registered | None:
    """That of its scalable topic. The official client does not ask for it."""
    ask = BaseCommand(type=BaseCommand.GET_SCHEMA)
    ask.getSchema.topic = topic
    if version != LATEST:
        ask.getSchema.schema_version = version.to_bytes(8, "big")
    try:
        held, _ = connect(connection)
        try:
            ask.getSchema.request_id = held.request_id()
            held.send(ask)
            answer = held.answer(BaseCommand.GET_SCHEMA_RESPONSE).getSchemaResponse
        finally:
            held.close()
    except RawConnectionError as error:
        raise SchemaError(f"{topic}: its schema cannot be read: {error}; check that reading it is allowed") from error
    if not answer.HasField("error_code"):
        return Registered(Schema.Type.Name(answer.schema.type).upper(), answer.schema.schema_data.decode())
    if answer.error_code == ServerError.TopicNotFound:
        return None
    raise SchemaError(f"{topic}: its schema cannot be read: {answer.error_message}; check that reading it is allowed")


def _spark(kind: Any, named: dict[str, DataType]) -> DataType:
    if isinstance(kind, list):
        return _union(kind, named)
    if isinstance(kind, str):
        found = _PLAIN.get(kind) or named.get(kind)
        if found is None:
            raise SchemaError(
                f"the registered schema has a {kind}, which has no Spark type: name the columns in CREATE SOURCE"
            )
        return found
    logical, base = kind.get("logicalType"), kind["type"]
    if logical == "decimal":
        return DecimalType(min(int(kind["precision"]), 38), int(kind.get("scale", 0)))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if base == "array":
        return ArrayType(_spark(kind["items"], named))
    if base == "map":
        return MapType(StringType(), _spark(kind["values"], named))
    if base == "record":
        fields = [StructField(each["name"], _spark(each["type"], named)) for each in kind["fields"]]
        named[kind["name"]] = StructType(fields)
        return named[kind["name"]]
    if base in ("enum", "fixed"):
        named[kind["name"]] = _PLAIN[base]
    return _spark(base, named)


def _union(members: list[Any], named: dict[str, DataType]) -> DataType:
    some = [each for each in members if each != "null"]
    if len(some) == 1:
        return _spark(some[0], named)
    for wide, narrow in (("long", {"int", "long"}), ("double", {"float", "double"})):
        if set(map(str, some)) <= narrow:
            return _PLAIN[wide]
    raise SchemaError(
        f"the registered schema has a union of {some}, which has no Spark type: name other columns in CREATE SOURCE"
    )
