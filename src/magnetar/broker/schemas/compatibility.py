"""Decides whether a schema may follow others: the strategies, and the rules of each type. Pure.

Source: PIP-44 and Pulsar's "schema evolution and compatibility".
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable
from typing import TypeVar

from magnetar.broker.errors import IncompatibleSchemaError
from magnetar.broker.schemas import avro_resolution, key_value, protobuf_native
from magnetar.broker.schemas.avro_schema import canonical_json, parse_avro, parse_json
from magnetar.broker.schemas.protobuf_native import parse_protobuf
from magnetar.broker.schemas.types import AVRO_BASED, InvalidSchemaError, Schema, SchemaType

T = TypeVar("T")

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
    """The strategy for a consumer, which only reads (PIP-44). The strategies that look at the latest version come down to BACKWARD."""
    latest_only = (Strategy.BACKWARD, Strategy.FORWARD, Strategy.FULL, Strategy.FORWARD_TRANSITIVE)
    return Strategy.BACKWARD if strategy in latest_only else strategy


JSON_SCHEMA_TYPES = frozenset({"any", "array", "boolean", "integer", "null", "number", "object", "string"})
"""The types of a definition by json-schema.org."""


def validate(schema: Schema, *, json_schemas: bool = False) -> None:
    """Raises InvalidSchemaError for a definition that makes no sense for its type. With `json_schemas` the definition of type JSON may
    be one by json-schema.org, as clients before 2.1 and pulsar-rs send them (PIP-464)."""
    if len(schema.data) > SCHEMA_BYTES_MAX:
        raise InvalidSchemaError(f"the schema is larger than {SCHEMA_BYTES_MAX} bytes")
    if schema.type in AVRO_BASED:
        try:
            parse_avro(schema.data)
        except InvalidSchemaError:
            if not (json_schemas and is_json_schema(schema)):
                raise
    elif schema.type is SchemaType.PROTOBUF_NATIVE:
        parse_protobuf(schema.data)
    elif schema.type is SchemaType.KEY_VALUE:
        for part in key_value.split(schema):
            validate(part, json_schemas=json_schemas)


def is_json_schema(schema: Schema) -> bool:
    """True for a definition of type JSON by json-schema.org. What is one of Avro as well (`{"type": "string"}`) is Avro's."""
    if schema.type is not SchemaType.JSON:
        return False
    try:
        parse_avro(schema.data)
    except InvalidSchemaError:
        document = parse_json(schema.data)
        return isinstance(document, dict) and document.get("type") in JSON_SCHEMA_TYPES
    return False


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
    problem = _problem(new, old, strategy)
    if problem is not None:
        raise IncompatibleSchemaError(f"Incompatible schema under {strategy}: {problem}")


def _problem(new: Schema, old: Schema, strategy: Strategy) -> str | None:
    """The reason why two schemas of one type are incompatible; None if they are compatible."""
    kinds = is_json_schema(new), is_json_schema(old)
    if all(kinds):
        ids = [parse_json(schema.data).get("id") for schema in (new, old)]
        return None if ids[0] == ids[1] else f"the id changed from {ids[1]!r} to {ids[0]!r}"
    if any(kinds):
        return None  # as in Pulsar: between the two kinds of definition there is nothing to compare
    if new.type in AVRO_BASED:
        return _both_ways(avro_resolution.why_unreadable, parse_avro(new.data), parse_avro(old.data), strategy)
    if new.type is SchemaType.PROTOBUF_NATIVE:
        return _both_ways(protobuf_native.why_unreadable, parse_protobuf(new.data), parse_protobuf(old.data), strategy)
    if new.type is SchemaType.KEY_VALUE:
        return _problem_of_parts(key_value.split(new), key_value.split(old), strategy)
    return None


def _both_ways(why_unreadable: Callable[[T, T], str | None], new: T, old: T, strategy: Strategy) -> str | None:
    """`why_unreadable` takes the reader and the writer."""
    return (why_unreadable(new, old) if strategy.new_reads_old else None) or (
        why_unreadable(old, new) if strategy.old_reads_new else None
    )


def _problem_of_parts(new: tuple[Schema, Schema], old: tuple[Schema, Schema], strategy: Strategy) -> str | None:
    for which, mine, theirs in zip(("key", "value"), new, old, strict=True):
        if mine.type is not theirs.type:
            return f"the {which}'s type changed from {theirs.type.name} to {mine.type.name}"
        problem = _problem(mine, theirs, strategy)
        if problem is not None:
            return f"{which}: {problem}"
    return None
