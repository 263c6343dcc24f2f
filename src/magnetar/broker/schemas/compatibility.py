"""May this schema follow those? Strategies, and the rules of each type. Pure.

Source: PIP-44 and Pulsar's "schema evolution and compatibility".
"""

from __future__ import annotations

import enum
import hashlib

from magnetar.broker.errors import IncompatibleSchemaError
from magnetar.broker.schemas import avro_resolution, key_value, protobuf_native
from magnetar.broker.schemas.avro_schema import canonical_json, parse_avro
from magnetar.broker.schemas.errors import InvalidSchemaError
from magnetar.broker.schemas.protobuf_native import parse_protobuf
from magnetar.broker.schemas.types import AVRO_BASED, SCHEMALESS, Schema, SchemaType

SCHEMA_BYTES_MAX = 1024 * 1024
"""A larger definition is refused; the command it comes in is bounded to as much."""


class Strategy(enum.StrEnum):
    """`schemaCompatibilityStrategy`. UNDEFINED goes on to the next level: topic, namespace, broker."""

    UNDEFINED = "UNDEFINED"
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def transitive(self) -> bool:
        """All living versions count, not only the latest."""
        return self.endswith("_TRANSITIVE")

    @property
    def new_reads_old(self) -> bool:
        return self.startswith(("BACKWARD", "FULL"))

    @property
    def old_reads_new(self) -> bool:
        return self.startswith(("FORWARD", "FULL"))


def consumer_strategy(strategy: Strategy) -> Strategy:
    """What a consumer must fulfil: it only reads (PIP-44). The strategies that look at the latest version come down to BACKWARD."""
    latest_only = (Strategy.BACKWARD, Strategy.FORWARD, Strategy.FULL, Strategy.FORWARD_TRANSITIVE)
    return Strategy.BACKWARD if strategy in latest_only else strategy


def validate(schema: Schema) -> None:
    """Raises InvalidSchemaError for a definition that makes no sense for its type."""
    if len(schema.data) > SCHEMA_BYTES_MAX:
        raise InvalidSchemaError(f"the schema is larger than {SCHEMA_BYTES_MAX} bytes")
    if schema.type in AVRO_BASED:
        parse_avro(schema.data)
    elif schema.type is SchemaType.PROTOBUF_NATIVE:
        parse_protobuf(schema.data)
    elif schema.type is SchemaType.KEY_VALUE:
        for part in key_value.split(schema):
            validate(part)


def fingerprint(schema: Schema) -> bytes:
    """Equal for schemas that are the same one: layout and documentation of Avro's JSON do not count, nor data of primitive types."""
    digest = hashlib.sha256(schema.type.name.encode() + b"\0")
    if schema.type in AVRO_BASED:
        digest.update(canonical_json(schema.data).encode())
    elif schema.type is SchemaType.KEY_VALUE:
        digest.update(schema.properties.get(key_value.ENCODING_PROPERTY, "").encode())
        for part in key_value.split(schema):
            digest.update(fingerprint(part))
    elif schema.type in (SchemaType.PROTOBUF_NATIVE, SchemaType.EXTERNAL):
        digest.update(schema.data)
    return digest.digest()


def check_pair(new: Schema, old: Schema, strategy: Strategy) -> None:
    """`new` against one existing version, whose type it must have. Raises IncompatibleSchemaError."""
    if strategy is Strategy.ALWAYS_COMPATIBLE:
        return
    if strategy is Strategy.ALWAYS_INCOMPATIBLE:
        raise IncompatibleSchemaError("the compatibility strategy is ALWAYS_INCOMPATIBLE")
    if new.type is not old.type:
        raise IncompatibleSchemaError(
            f"Incompatible schema: exists schema type {old.type.name}, new schema type {new.type.name}"
        )
    problem = (_why_unreadable(reader=new, writer=old) if strategy.new_reads_old else None) or (
        _why_unreadable(reader=old, writer=new) if strategy.old_reads_new else None
    )
    if problem is not None:
        raise IncompatibleSchemaError(f"Incompatible schema under {strategy}: {problem}")


def _why_unreadable(*, reader: Schema, writer: Schema) -> str | None:
    """Both have the same type."""
    if reader.type in SCHEMALESS:
        return None
    if reader.type in AVRO_BASED:
        return avro_resolution.why_unreadable(parse_avro(reader.data), parse_avro(writer.data))
    if reader.type is SchemaType.PROTOBUF_NATIVE:
        return protobuf_native.why_unreadable(parse_protobuf(reader.data), parse_protobuf(writer.data))
    if reader.type is SchemaType.KEY_VALUE:
        return _why_pair_unreadable(key_value.split(reader), key_value.split(writer))
    return None


def _why_pair_unreadable(reader: tuple[Schema, Schema], writer: tuple[Schema, Schema]) -> str | None:
    for which, mine, theirs in zip(("key", "value"), reader, writer, strict=True):
        if mine.type is not theirs.type:
            return f"the {which}'s type changed from {theirs.type.name} to {mine.type.name}"
        problem = _why_unreadable(reader=mine, writer=theirs)
        if problem is not None:
            return f"{which}: {problem}"
    return None
