"""Avro resolution against an oracle: what we call readable, fastavro really reads; what we refuse, it cannot."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar.broker.errors import IncompatibleSchemaError
from magnetar.broker.schemas.avro_resolution import why_unreadable
from magnetar.broker.schemas.avro_schema import canonical_json, parse_avro
from magnetar.broker.schemas.compatibility import fingerprint, validate
from magnetar.broker.schemas.types import Schema, SchemaType
from tests.property.broker.avro_oracle import fastavro_reads, pairs, schemas, unions

slow = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def problem(writer: Any, reader: Any) -> str | None:
    return why_unreadable(parse_avro(json.dumps(reader).encode()), parse_avro(json.dumps(writer).encode()))


@slow
@given(pairs())
def test_compatible_is_what_fastavro_reads(pair: tuple[Any, Any]) -> None:
    writer, reader = pair
    assert (problem(writer, reader) is None) == fastavro_reads(writer, reader)


@settings(max_examples=400, deadline=None)
@given(unions("", 0), st.one_of(unions("", 0), schemas(depth=0)), st.booleans())
def test_unions_are_readable_when_fastavro_reads_each_branch(union: Any, other: Any, swapped: bool) -> None:
    writer, reader = (other, union) if swapped else (union, other)
    assert (problem(writer, reader) is None) == fastavro_reads(writer, reader)


@settings(max_examples=100, deadline=None)
@given(schemas(depth=2))
def test_every_schema_reads_itself_and_survives_a_new_layout(schema: Any) -> None:
    assert problem(schema, schema) is None
    compact, wide = json.dumps(schema).encode(), json.dumps(schema, indent=2, sort_keys=True).encode()
    assert canonical_json(compact) == canonical_json(wide)


def check(schema: Schema) -> None:
    """Accepted, and then it has a fingerprint; or refused with a text that can travel."""
    try:
        validate(schema)
    except IncompatibleSchemaError as error:
        refusal = str(error)
    else:
        refusal = fingerprint(schema).hex()
    assert refusal.encode()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(("type", "name", "fields", "items", "values", "symbols", "size", "aliases", "default")),
            inner | st.sampled_from(("record", "enum", "fixed", "array", "map", "int")),
            max_size=5,
        )
    ),
    max_leaves=30,
)


@settings(max_examples=300, deadline=None)
@given(json_values)
def test_any_json_is_a_schema_or_refused(document: Any) -> None:
    check(Schema(SchemaType.AVRO, json.dumps(document).encode()))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.sampled_from(SchemaType))
def test_any_bytes_are_a_schema_or_refused(data: bytes, kind: SchemaType) -> None:
    check(Schema(kind, data))
