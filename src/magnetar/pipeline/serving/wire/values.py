"""Values of columns as PostgreSQL writes them, in text and binary, and parameters as clients send them. Pure.

Columns come as Arrow arrays, so that instants keep their microseconds and dates beyond Python's years are dates.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from magnetar.pipeline.serving.wire.types import BY_NAME, BY_OID, PgType, has_any_digits, of_arrow

Encoded = list[bytes | None]

EPOCH_DAYS: Final = 10957
"""2000-01-01, from which PostgreSQL counts, in days since 1970."""

DAY_US: Final = 86_400_000_000
INFINITE_DAYS: Final = 2**31 - 1
INFINITE_US: Final = 2**63 - 1


class BadValueError(ValueError):
    """A parameter that is not what its type says."""


# ---- Out


def encode_column(column: Any, kind: PgType, binary: bool) -> Encoded:
    """The values of an Arrow array of a result; None is NULL."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if kind.element:
        if not _is_list(column.type):
            return [None if value is None else _utf8(value) for value in column.to_pylist()]
        element = BY_NAME[kind.element]
        return _binary_arrays(column, element) if binary else _text_arrays(column, element)
    if kind.name == "record" and pa.types.is_struct(column.type):
        return _records(column, binary)
    if pa.types.is_decimal(column.type) and has_any_digits(column.type.precision, column.type.scale):
        short = [None if value is None else _shortest(value) for value in column.to_pylist()]
        return [
            None if value is None else _numeric(value) if binary else format(value, "f").encode() for value in short
        ]
    encode = (_BINARY if binary else _TEXT).get(kind.name, _utf8)
    return [None if value is None else encode(value) for value in plain_values(column, kind)]


def _shortest(value: Decimal) -> Decimal:
    """Without zeros at the end."""
    return value.quantize(Decimal(1)) if value == value.to_integral_value() else value.normalize()


def plain_values(column: Any, kind: PgType) -> list[Any]:
    """Python's values, except that times are numbers: days or microseconds since 1970, microseconds of the day."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    arrow = column.type
    if kind.name == "date":
        return list(column.cast(pa.int32()).to_pylist())
    if kind.name in ("timestamp", "timestamptz"):
        if arrow.unit != "us":
            column = column.cast(pa.timestamp("us", arrow.tz), safe=False)
        return list(column.cast(pa.int64()).to_pylist())
    if kind.name == "time":
        return list(column.cast(pa.time64("us"), safe=False).cast(pa.int64()).to_pylist())
    return list(column.to_pylist())


def _utf8(value: Any) -> bytes:
    return (value if isinstance(value, str) else str(value)).encode()


def _float(value: float) -> bytes:
    if math.isfinite(value):
        text = repr(value)
        return (text.removesuffix(".0")).encode()
    return b"NaN" if math.isnan(value) else b"Infinity" if value > 0 else b"-Infinity"


def _float4(value: float) -> bytes:
    """The shortest text that is this number in 32 bits."""
    if not math.isfinite(value):
        return _float(value)
    for digits in range(6, 10):
        text = f"{value:.{digits}g}"
        if struct.pack("f", float(text)) == struct.pack("f", value):
            return _float(float(text))
    return _float(value)


def _json(value: Any) -> bytes:
    return (value if isinstance(value, str) else json.dumps(_jsonable(value), default=str)).encode()


def _jsonable(value: Any) -> Any:
    if isinstance(value, list) and value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
        return {str(key): _jsonable(item) for key, item in value}  # a map
    if isinstance(value, dict):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    return value


def civil(days: int) -> tuple[int, int, int]:
    """Year, month and day of the proleptic Gregorian calendar, of days since 1970 (Hinnant, chrono-compatible date algorithms)."""
    days += 719468
    era, day_of_era = divmod(days, 146097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_part = (5 * day_of_year + 2) // 153
    month = month_part + 3 if month_part < 10 else month_part - 9
    return year_of_era + era * 400 + (month <= 2), month, day_of_year - (153 * month_part + 2) // 5 + 1


def _date_text(days: int) -> tuple[str, str]:
    """The date, and what follows behind the time."""
    year, month, day = civil(days)
    if year > 0:
        return f"{year:04d}-{month:02d}-{day:02d}", ""
    return f"{1 - year:04d}-{month:02d}-{day:02d}", " BC"


def _date(days: int) -> bytes:
    if abs(days) >= INFINITE_DAYS:
        return b"infinity" if days > 0 else b"-infinity"
    return "".join(_date_text(days)).encode()


def _time_text(microseconds: int) -> str:
    seconds, fraction = divmod(microseconds, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return text if not fraction else f"{text}.{fraction:06d}".rstrip("0")


def _timestamp(microseconds: int, zone: str = "") -> bytes:
    if abs(microseconds) >= INFINITE_US:
        return b"infinity" if microseconds > 0 else b"-infinity"
    days, rest = divmod(microseconds, DAY_US)
    text, era = _date_text(days)
    return f"{text} {_time_text(rest)}{zone}{era}".encode()


def _parts(value: Any) -> tuple[int, int, int]:
    """Months, days, microseconds of an interval."""
    if isinstance(value, timedelta):
        return 0, value.days, value.seconds * 1_000_000 + value.microseconds
    months, days, nanoseconds = value
    return months, days, int(nanoseconds / 1000)


def _interval(value: Any) -> bytes:
    months, days, microseconds = _parts(value)
    parts = []
    years, months = int(months / 12), int(math.fmod(months, 12))
    for count, unit in ((years, "year"), (months, "mon"), (days, "day")):
        if count:
            parts.append(f"{count} {unit}{'' if count == 1 else 's'}")
    if microseconds or not parts:
        parts.append(("-" if microseconds < 0 else "") + _time_text(abs(microseconds)))
    return " ".join(parts).encode()


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _split(column: Any, elements: Sequence[Any]) -> list[Sequence[Any] | None]:
    """What belongs to each list of a column. `elements`: of all of them, one behind the other."""
    found: list[Sequence[Any] | None] = []
    at = 0
    fixed = pa.types.is_fixed_size_list(column.type)
    sizes = (
        [column.type.list_size if valid else None for valid in column.is_valid().to_pylist()]
        if fixed
        else column.value_lengths().to_pylist()
    )
    for length in sizes:
        found.append(None if length is None else elements[at : at + length])
        at += length or 0
    return found


def _text_arrays(column: Any, element: PgType) -> Encoded:
    """`{1,2}`; lists within lists are further dimensions of the array."""
    inner = column.flatten()
    if _is_list(inner.type):
        parts = [b"NULL" if text is None else text for text in _text_arrays(inner, element)]
    else:
        parts = [b"NULL" if text is None else _quoted(text) for text in encode_column(inner, element, False)]
    return [None if texts is None else b"{" + b",".join(texts) + b"}" for texts in _split(column, parts)]


def _quoted(text: bytes) -> bytes:
    """An element of an array."""
    if text and text.lower() != b"null" and not _TO_QUOTE.search(text):
        return text
    return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


_TO_QUOTE: Final = re.compile(rb'[{},"\\\s]')
_TO_QUOTE_IN_RECORDS: Final = re.compile(rb'[(),"\\\s]')


def _records(column: Any, binary: bool) -> Encoded:
    """`(1,a)`, as PostgreSQL writes rows."""
    kinds = [of_arrow(column.type.field(at).type)[0] for at in range(column.type.num_fields)]
    fields = [encode_column(each, kind, binary) for each, kind in zip(column.flatten(), kinds, strict=True)]
    rows = zip(*fields, strict=True) if fields else iter([()] * len(column))
    there = column.is_valid().to_pylist()
    if not binary:
        return [
            b"(" + b",".join(map(_field, row)) + b")" if valid else None for row, valid in zip(rows, there, strict=True)
        ]
    found: Encoded = []
    for row, valid in zip(rows, there, strict=True):
        parts = [struct.pack("!i", len(kinds))]
        for kind, value in zip(kinds, row, strict=True):
            parts += [struct.pack("!Ii", kind.oid, -1 if value is None else len(value)), value or b""]
        found.append(b"".join(parts) if valid else None)
    return found


def _field(text: bytes | None) -> bytes:
    if text is None:
        return b""
    if text and not _TO_QUOTE_IN_RECORDS.search(text):
        return text
    return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'""') + b'"'


def _binary_arrays(column: Any, element: PgType) -> Encoded:
    """Raises ValueError for lists of several lengths within one array, which has no binary form."""
    lists, inner = [column], column.flatten()
    while _is_list(inner.type):
        lists.append(inner)
        inner = inner.flatten()
    parts: Sequence[Any] = encode_column(inner, element, True)
    for each in reversed(lists):
        parts = _split(each, parts)
    return [None if values is None else _binary_array(values, len(lists), element) for values in parts]


def _binary_array(values: Sequence[Any], dimensions: int, element: PgType) -> bytes:
    sizes, level = [], [values]
    for _ in range(dimensions):
        lengths = {len(each) for each in level if each is not None}
        if len(lengths) != 1 or any(each is None for each in level):
            raise ValueError("an array of several dimensions has parts of several lengths")
        sizes.append(lengths.pop())
        level = [part for each in level for part in each]
    flat: list[Any] = list(level)
    if not flat:
        return struct.pack("!iiI", 0, 0, element.oid)
    head = struct.pack("!iiI", dimensions, int(None in flat), element.oid)
    shape = b"".join(struct.pack("!ii", size, 1) for size in sizes)
    body = b"".join(struct.pack("!i", -1) if each is None else struct.pack("!i", len(each)) + each for each in flat)
    return head + shape + body


def _numeric(value: Any) -> bytes:
    """Digits to the base of 10,000 (PostgreSQL's numeric_send)."""
    sign, digits, exponent = Decimal(value).as_tuple()
    if not isinstance(exponent, int):
        return struct.pack("!hhHh", 0, 0, 0xC000, 0)
    scale = max(-exponent, 0)
    text = "".join(map(str, digits)) + "0" * max(exponent, 0)
    whole, fraction = (text[:-scale], text[-scale:].rjust(scale, "0")) if scale else (text, "")
    whole = whole.rjust((len(whole) + 3) // 4 * 4, "0")
    fraction = fraction.ljust((len(fraction) + 3) // 4 * 4, "0")
    groups = [int((whole + fraction)[at : at + 4]) for at in range(0, len(whole) + len(fraction), 4)]
    weight = len(whole) // 4 - 1
    while groups and groups[0] == 0:
        groups.pop(0)
        weight -= 1
    while groups and groups[-1] == 0:
        groups.pop()
    if not groups:
        sign, weight = 0, 0
    return struct.pack(f"!hhHh{len(groups)}h", len(groups), weight, 0x4000 * sign, scale, *groups)


def _binary_interval(value: Any) -> bytes:
    months, days, microseconds = _parts(value)
    return struct.pack("!qii", microseconds, days, months)


def _binary_date(days: int) -> bytes:
    if abs(days) >= INFINITE_DAYS:
        return struct.pack("!i", 2**31 - 1 if days > 0 else -(2**31))
    return struct.pack("!i", days - EPOCH_DAYS)


def _binary_timestamp(microseconds: int) -> bytes:
    if abs(microseconds) >= INFINITE_US:
        return struct.pack("!q", 2**63 - 1 if microseconds > 0 else -(2**63))
    return struct.pack("!q", microseconds - EPOCH_DAYS * DAY_US)


_TEXT: Final[dict[str, Callable[[Any], bytes]]] = {
    "bool": lambda value: b"t" if value else b"f",
    "bytea": lambda value: b"\\x" + bytes(value).hex().encode(),
    "float4": _float4,
    "float8": _float,
    "numeric": lambda value: format(value, "f").encode() if isinstance(value, Decimal) else _utf8(value),
    "date": _date,
    "time": lambda value: _time_text(value).encode(),
    "timestamp": _timestamp,
    "timestamptz": lambda value: _timestamp(value, "+00"),
    "interval": _interval,
    "int2vector": lambda value: " ".join(map(str, value)).encode(),
    "json": _json,
    "jsonb": _json,
}

_BINARY: Final[dict[str, Callable[[Any], bytes]]] = {
    "bool": lambda value: b"\x01" if value else b"\x00",
    "bytea": bytes,
    "int2": struct.Struct("!h").pack,
    "int4": struct.Struct("!i").pack,
    "int8": struct.Struct("!q").pack,
    "oid": struct.Struct("!I").pack,
    "float4": struct.Struct("!f").pack,
    "float8": struct.Struct("!d").pack,
    "numeric": _numeric,
    "date": _binary_date,
    "time": struct.Struct("!q").pack,
    "timestamp": _binary_timestamp,
    "timestamptz": _binary_timestamp,
    "interval": _binary_interval,
    "uuid": lambda value: UUID(str(value)).bytes,
    "int2vector": lambda value: _binary_array([struct.pack("!h", each) for each in value], 1, BY_NAME["int2"]),
    "json": _json,
    "jsonb": lambda value: b"\x01" + _json(value),
}


# ---- In


def decode_parameter(data: bytes | None, oid: int, binary: bool) -> Any:
    """A value that DuckDB casts to the parameter's type: a text, bytes, or a list of texts. Raises BadValueError."""
    if data is None:
        return None
    kind = BY_OID.get(oid, BY_NAME["text"])
    try:
        if binary:
            return _from_binary(data, kind)
        text = data.decode()
        if "\x00" in text:
            raise BadValueError("a text must not contain the zero character")
        if kind.name == "bytea":
            return _bytes_of(text)
        return _list_of(text) if kind.element else text
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        raise BadValueError(f"a parameter is not a valid {kind.name}: {error}") from error


def _bytes_of(text: str) -> bytes:
    if text.startswith("\\x"):
        return bytes.fromhex(text[2:])
    return text.replace("\\\\", "\\").encode()


def _from_binary(data: bytes, kind: PgType) -> Any:
    if kind.element:
        return _list_from_binary(data, BY_NAME[kind.element])
    match kind.name:
        case "bool":
            return "true" if data != b"\x00" else "false"
        case "bytea":
            return data
        case "int2" | "int4" | "int8" | "oid":
            sizes = {"int2": 2, "int4": 4, "int8": 8, "oid": 4}
            if len(data) != sizes[kind.name]:
                raise BadValueError(f"{len(data)} bytes")
            return str(int.from_bytes(data, "big", signed=kind.name != "oid"))
        case "float4":
            return repr(struct.unpack("!f", data)[0])
        case "float8":
            return repr(struct.unpack("!d", data)[0])
        case "numeric":
            return _numeric_text(data)
        case "date":
            (days,) = struct.unpack("!i", data)
            return _date(
                days + EPOCH_DAYS if abs(days) < 2**31 - 1 else int(math.copysign(INFINITE_DAYS, days))
            ).decode()
        case "time":
            return _time_text(struct.unpack("!q", data)[0])
        case "timestamp" | "timestamptz":
            (found,) = struct.unpack("!q", data)
            zone = "+00" if kind.name == "timestamptz" else ""
            return _timestamp(found + EPOCH_DAYS * DAY_US if abs(found) < INFINITE_US else found, zone).decode()
        case "interval":
            microseconds, days, months = struct.unpack("!qii", data)
            return f"{months} months {days} days {microseconds} microseconds"
        case "uuid":
            return str(UUID(bytes=data))
        case "jsonb":
            return data[1:].decode()
    return data.decode()


def _numeric_text(data: bytes) -> str:
    count, weight, sign, scale = struct.unpack("!hhHh", data[:8])
    if sign == 0xC000:
        raise BadValueError("NaN is not a decimal here")
    groups = struct.unpack(f"!{count}h", data[8:])
    value = sum(Decimal(group).scaleb(4 * (weight - at)) for at, group in enumerate(groups))
    text = format(Decimal(value), f".{max(scale, 0)}f")
    return f"-{text}" if sign == 0x4000 else text


def _list_from_binary(data: bytes, element: PgType) -> list[Any]:
    dimensions, _, _ = struct.unpack("!iiI", data[:12])
    if dimensions == 0:
        return []
    if dimensions != 1:
        raise BadValueError("arrays of several dimensions are not supported as parameters")
    (count, _), at = struct.unpack("!ii", data[12:20]), 20
    found: list[Any] = []
    for _ in range(count):
        (size,) = struct.unpack("!i", data[at : at + 4])
        at += 4
        if size == -1:
            found.append(None)
            continue
        if size < 0 or at + size > len(data):
            raise BadValueError("the array is cut off")
        found.append(_from_binary(data[at : at + size], element))
        at += size
    return found


def _list_of(text: str) -> list[str | None]:
    """The elements of an array literal of one dimension: `{a,"b c",NULL}`."""
    text = text.strip()
    if not (text.startswith("{") and text.endswith("}")):
        raise BadValueError("an array is written as {a,b,c}")
    found: list[str | None] = []
    at, end = 1, len(text) - 1
    while at < end:
        word, quoted = [], False
        while at < end and text[at] != ",":
            if text[at] == '"':
                quoted, at = True, at + 1
                while text[at] != '"':
                    at += text[at] == "\\"
                    word.append(text[at])
                    at += 1
            elif text[at] in "{}":
                raise BadValueError("arrays of several dimensions are not supported as parameters")
            else:
                at += text[at] == "\\"
                word.append(text[at])
            at += 1
        whole = "".join(word) if quoted else "".join(word).strip()
        found.append(None if not quoted and whole.lower() == "null" else whole)
        at += 1
    return found
