"""The rows of a table that clients write, out of its topic without Spark: what they send is JSON of a form that is known.

Anybody may publish to the topic. A message of another form than the one that this server writes is left to Spark, and with it all that
the epoch has of the table, so that there is one meaning of a message. `tests/integration/pipeline/test_written_tables.py` holds both
side by side.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from magnetar.pipeline.connect.offsets import Range
from magnetar.pipeline.operators.changelog import CHANGE, DELETE, UPDATE_AFTER
from magnetar.pipeline.sql.statements import ROW_KEY, CreateSource
from magnetar.pipeline.views.lowering.stages import ROW_ID, Feed
from magnetar.pipeline.views.source.options import decode_policy

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from magnetar.pipeline.connect.options import ReadOptions

Convert = Callable[[Any], Any]
"""A value of JSON as Arrow takes it. Raises OtherForm."""

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?")
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
_INTEGER: Final = re.compile(r"-?(0|[1-9]\d{0,18})")
_NOT_NUMBERS: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class OtherForm(Exception):
    """A message that this server has not written."""


def is_plain(source: CreateSource, feed: Feed) -> bool:
    """Whether messages of a table may be read so: nothing is computed from them, and nothing is to be sent elsewhere."""
    return (
        source.is_written
        and not feed.steps
        and source.watermark is None
        and not source.sends_failed
        and decode_policy(source) == "null"
        and all(column.generated is None for column in source.columns)
        and [include.name for include in source.includes] in ([], [ROW_KEY])
        and all(_is_known(field.type) for field in feed.schema)
    )


def read_written(
    source: CreateSource, feed: Feed, parts: Sequence[Range], options: ReadOptions, schema: StructType
) -> pa.Table | None:
    """The feed's columns, `_change` and the order of the rows in ROW_ID; None where a message has another form.

    `schema`: the connector's columns that the source is decoded from. Raises what reading a range raises.
    """
    from magnetar.pipeline.connect.reading.columns import Columns
    from magnetar.pipeline.connect.reading.range_reader import read_range

    values: list[bytes | None] = []
    keys: list[str | None] = []
    for part in parts:
        for batch in read_range(options, part, Columns(schema, options.connection)):
            values += batch.column("value").to_pylist()
            keys += batch.column("__key").to_pylist()
    try:
        return table_of(source, feed.schema, values, keys)
    except OtherForm:
        return None


def table_of(
    source: CreateSource, schema: pa.Schema, values: Sequence[bytes | None], keys: Sequence[str | None]
) -> pa.Table:
    """Of messages in their order. Raises OtherForm."""
    converts = {field.name: _converter(field.type) for field in schema}
    named = {field.name.lower(): field.name for field in schema}
    primary = [named[name.lower()] for name in source.primary_key]
    columns: dict[str, list[Any]] = {name: [] for name in converts}
    changes = []
    for value, key in zip(values, keys, strict=True):
        if value:
            row = _object(value)
            if ROW_KEY in converts:
                row[ROW_KEY] = key
            changes.append(UPDATE_AFTER)
        else:
            row = _key_values(primary, schema, key)
            changes.append(DELETE)
        if not row.keys() <= converts.keys():
            raise OtherForm
        for name, convert in converts.items():
            found = row.get(name)
            columns[name].append(None if found is None else convert(found))
        if any(columns[name][-1] is None for name in primary):
            raise OtherForm  # Spark says what becomes of it
    try:
        arrays = [pa.array(columns[field.name], field.type) for field in schema]
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise OtherForm from error
    return pa.Table.from_arrays(
        [pa.array(changes, pa.int8()), pa.array(range(len(changes)), pa.int64()), *arrays],
        names=[CHANGE, ROW_ID, *schema.names],
    )


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text, parse_float=Decimal, parse_constant=_refused, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise OtherForm from error
    if not isinstance(found, dict):
        raise OtherForm
    return found


def _refused(_: str) -> Any:
    raise OtherForm


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise OtherForm
    return found


def _key_values(primary: Sequence[str], schema: pa.Schema, key: str | None) -> dict[str, Any]:
    """Of a message that deletes: its key is the text of one column, or an object of several."""
    if key is None:
        raise OtherForm
    if len(primary) > 1:
        return _object(key.encode())
    kind = schema.field(primary[0]).type
    if pa.types.is_string(kind):
        return {primary[0]: key}
    if pa.types.is_integer(kind) and _INTEGER.fullmatch(key):
        return {primary[0]: int(key)}
    raise OtherForm


# ---- Values


def _is_known(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _is_known(kind.value_type)
    if pa.types.is_struct(kind):
        return all(_is_known(kind.field(at).type) for at in range(kind.num_fields))
    return any(test(kind) for test, _ in _SCALARS)


def _converter(kind: pa.DataType) -> Convert:
    if pa.types.is_list(kind):
        return _list_of(_converter(kind.value_type))
    if pa.types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return _struct_of({each.name: _converter(each.type) for each in fields})
    make = next(make for test, make in _SCALARS if test(kind))
    return make(kind)


def _list_of(convert: Convert) -> Convert:
    def elements(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise OtherForm
        return [None if each is None else convert(each) for each in value]

    return elements


def _struct_of(converts: dict[str, Convert]) -> Convert:
    def fields(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or not value.keys() <= converts.keys():
            raise OtherForm
        return {name: None if value.get(name) is None else convert(value[name]) for name, convert in converts.items()}

    return fields


def _boolean(_: pa.DataType) -> Convert:
    return lambda value: _of(bool, value)


def _text(_: pa.DataType) -> Convert:
    return lambda value: _of(str, value)


def _integer(kind: pa.DataType) -> Convert:
    most = 1 << (kind.bit_width - 1)

    def convert(value: Any) -> int:
        if type(value) is not int or not -most <= value < most:
            raise OtherForm
        return value

    return convert


def _float(kind: pa.DataType) -> Convert:
    narrow = kind.bit_width == 32

    def convert(value: Any) -> float:
        if isinstance(value, str):
            if value not in _NOT_NUMBERS:
                raise OtherForm
            return _NOT_NUMBERS[value]
        if type(value) is not int and not isinstance(value, Decimal):
            raise OtherForm
        try:
            found = float(value)
        except OverflowError as error:
            raise OtherForm from error
        if not np.isfinite(found) or (narrow and float(np.float32(found)) != found):
            raise OtherForm
        return found

    return convert


def _decimal(kind: pa.DataType) -> Convert:
    unit, most = Decimal(1).scaleb(-kind.scale), Decimal(10) ** (kind.precision - kind.scale)

    def convert(value: Any) -> Decimal:
        if type(value) is not int and not isinstance(value, Decimal):
            raise OtherForm
        number = Decimal(value)
        if abs(number) >= most:
            raise OtherForm
        try:
            found = number.quantize(unit)
        except InvalidOperation as error:
            raise OtherForm from error
        if found != number:
            raise OtherForm
        return found

    return convert


def _date(_: pa.DataType) -> Convert:
    def convert(value: Any) -> date:
        if not isinstance(value, str) or not _DAY.fullmatch(value):
            raise OtherForm
        try:
            return date.fromisoformat(value)
        except ValueError as error:
            raise OtherForm from error

    return convert


def _timestamp(kind: pa.DataType) -> Convert:
    zoned = kind.tz is not None

    def convert(value: Any) -> datetime:
        if not isinstance(value, str) or value.endswith("Z") != zoned:
            raise OtherForm
        if not _TIME.fullmatch(value.removesuffix("Z")):
            raise OtherForm
        try:
            return datetime.fromisoformat(value)
        except ValueError as error:
            raise OtherForm from error

    return convert


def _binary(_: pa.DataType) -> Convert:
    def convert(value: Any) -> bytes:
        try:
            return base64.b64decode(_of(str, value), validate=True)
        except binascii.Error as error:
            raise OtherForm from error

    return convert


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise OtherForm
    return value


_SCALARS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], Convert]], ...]] = (
    (pa.types.is_boolean, _boolean),
    (pa.types.is_integer, _integer),
    (pa.types.is_floating, _float),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_string, _text),
    (pa.types.is_binary, _binary),
    (pa.types.is_date, _date),
    (pa.types.is_timestamp, _timestamp),
)
