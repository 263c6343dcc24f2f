"""A schema as clients bring it, as it is stored, and on the wire with its version. Pure."""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from magnetar.broker.errors import IncompatibleSchemaError
from magnetar.broker.naming import TopicName
from magnetar.metadata import paths
from magnetar.wire.pulsar import PulsarApi_pb2 as api

_VERSION = struct.Struct(">q")


class SchemaType(enum.IntEnum):
    """Names are those of the admin API, numbers those of the binary protocol; negative ones never travel."""

    AUTO_CONSUME = -3
    BYTES = -1
    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    EXTERNAL = 22


AVRO_BASED = frozenset({SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF})
"""Their definition is an Avro schema: compared by Avro's rules of resolution."""

STRUCTURED = AVRO_BASED | {SchemaType.KEY_VALUE, SchemaType.PROTOBUF_NATIVE, SchemaType.EXTERNAL}
"""All others are primitive: the type says everything."""

SCHEMALESS = frozenset({SchemaType.BYTES, SchemaType.AUTO_CONSUME})
"""Types that stand for "whatever bytes come": never stored, never compared. NONE, which the Go client sends for its BYTES, is a schema
like any other: it has versions, and other types are incompatible with it."""


class SchemaId(NamedTuple):
    """The owner of a schema: a topic with all its partitions, in both domains, as in Pulsar."""

    tenant: str
    namespace: str
    topic: str

    @classmethod
    def of(cls, name: TopicName) -> SchemaId:
        return cls(name.tenant, name.namespace, name.partitioned_name.local_name)

    @property
    def path(self) -> str:
        """Path of the locator in the metadata store."""
        return paths.schema_path(self.tenant, self.namespace, self.topic)

    @property
    def text(self) -> str:
        """`tenant/namespace/encoded-topic`."""
        return self.path.removeprefix(paths.SCHEMAS_PATH + "/")


@dataclass(frozen=True, slots=True)
class Schema:
    """`data` is the definition: JSON for Avro-based types, both parts for KEY_VALUE, nothing that matters for primitive ones."""

    type: SchemaType
    data: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """One version. A deletion is a version too: its `schema` is of type NONE, and `deleted` says what it is."""

    version: int
    schema: Schema
    timestamp_ms: int
    deleted: bool = False


def pack_version(version: int) -> bytes:
    """Eight bytes, big-endian: what messages and PRODUCER_SUCCESS carry."""
    return _VERSION.pack(version)


def unpack_version(data: bytes) -> int | None:
    """The version in exactly eight bytes; None for any other length."""
    return int(_VERSION.unpack(data)[0]) if len(data) == _VERSION.size else None


class InvalidSchemaError(IncompatibleSchemaError):
    """The schema itself is malformed, or larger than what is checked."""

    slug = "invalid-schema"


_FROM_WIRE = {
    getattr(api.Schema, "None"): SchemaType.NONE,
    api.Schema.Bool: SchemaType.BOOLEAN,
    api.Schema.AutoConsume: SchemaType.AUTO_CONSUME,
    **{number: SchemaType(number) for number in range(SchemaType.INT8, SchemaType.PROTOBUF_NATIVE + 1)},
    **{number: SchemaType(number) for number in range(SchemaType.STRING, SchemaType.AVRO + 1)},
    api.Schema.External: SchemaType.EXTERNAL,
}


def from_message(message: api.Schema) -> Schema | None:
    """The schema of a message of the protocol; None for an unknown type."""
    type_ = _FROM_WIRE.get(message.type)
    if type_ is None:
        return None
    return Schema(type_, message.schema_data, {pair.key: pair.value for pair in message.properties})


def fill_message(message: api.Schema, schema_id: SchemaId, stored: StoredSchema) -> None:
    """Fill the message of a GET_SCHEMA response."""
    message.name = schema_id.text
    message.type = int(stored.schema.type)  # type: ignore[assignment]  # the stubs want the enum's own type
    message.schema_data = stored.schema.data
    for key, value in stored.schema.properties.items():
        message.properties.add(key=key, value=value)
