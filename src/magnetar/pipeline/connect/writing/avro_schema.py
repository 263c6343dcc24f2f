"""Avro definitions of columns, as Pulsar registers them for AVRO and for JSON topics. A decision core."""

from __future__ import annotations

import re
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as at

from magnetar.pipeline.connect.errors import SchemaError

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def record_of(schema: pa.Schema, name: str, json_text: bool = False) -> dict[str, Any]:
    """A record with every field nullable. `json_text`: of JSON documents, where times, dates and bytes are text, decimals numbers.

    Raises SchemaError for a name or type that Avro does not have.
    """
    return _record(list(schema), name, json_text)


def _record(fields: list[pa.Field], name: str, json_text: bool) -> dict[str, Any]:
    found = []
    for field in fields:
        if not _NAME.fullmatch(field.name):
            raise SchemaError(
                f"column {field.name!r} is not an Avro name: give it one of letters, digits and _ with AS"
            )
        kind = _type(field.type, f"{name}_{field.name}", json_text)
        found.append({"name": field.name, "type": ["null", kind], "default": None})
    return {"type": "record", "name": name, "fields": found}


def _type(kind: pa.DataType, name: str, json_text: bool) -> Any:
    for fits, avro in _PLAIN:
        if fits(kind):
            return avro
    for fits, text, avro in _LOGICAL:
        if fits(kind):
            return text if json_text else avro
    if at.is_decimal(kind):
        logical = {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        return "double" if json_text else logical
    if at.is_timestamp(kind):
        logical_name = "timestamp-micros" if kind.tz is not None else "local-timestamp-micros"
        return "string" if json_text else {"type": "long", "logicalType": logical_name}
    if at.is_list(kind) or at.is_large_list(kind):
        return {"type": "array", "items": ["null", _type(kind.value_type, name, json_text)]}
    if at.is_map(kind) and at.is_string(kind.key_type):
        return {"type": "map", "values": ["null", _type(kind.item_type, name, json_text)]}
    if at.is_struct(kind):
        return _record([kind.field(at_) for at_ in range(kind.num_fields)], name, json_text)
    raise SchemaError(f"{name} is {kind}, which Avro does not have: cast it in the view")


_PLAIN: Final[tuple[tuple[Any, str], ...]] = (
    (at.is_boolean, "boolean"),
    (lambda kind: at.is_integer(kind) and kind.bit_width < 64 and kind != pa.uint32(), "int"),
    (lambda kind: at.is_int64(kind) or at.is_uint32(kind), "long"),
    (at.is_float32, "float"),
    (at.is_float64, "double"),
    (lambda kind: at.is_string(kind) or at.is_large_string(kind), "string"),
)
_LOGICAL: Final[tuple[tuple[Any, Any, Any], ...]] = (
    (lambda kind: at.is_binary(kind) or at.is_large_binary(kind), "string", "bytes"),
    (at.is_date, "string", {"type": "int", "logicalType": "date"}),
)
