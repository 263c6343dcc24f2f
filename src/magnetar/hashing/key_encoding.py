"""Bytes of typed keys, as RisingWave feeds them to its vnode hash (the streams of Rust's `Hash` on its scalars, 64-bit little-endian).

Columns follow each other without separators. Rules per type (risingwavelabs/risingwave @448c6570b1, `src/common/src/types`):

| type | bytes |
|---|---|
| NULL, at any depth | ff ff ff f0 as u32 LE (`f0 ff ff ff`) |
| boolean | one byte |
| smallint, integer, bigint, serial (tinyint: ours) | two's complement LE of 2, 4, 8, 8 (1) bytes |
| int256 | u64 2 (the length of Rust's array of two), then 32 bytes LE |
| real, double | u64 of mantissa, exponent and sign as the `ordered-float` crate builds it; one NaN, one zero |
| decimal | i64 kind (0 -Infinity, 1 finite, 2 Infinity, 3 NaN); finite: coefficient without trailing zeros as 3 words u32 (4 when it or
  the scale is beyond 96 bits or 28), then flags: scale << 16, sign bit 31 |
| varchar, jsonb (as compact text with sorted keys) | UTF-8, then ff |
| bytea | u64 length, then the bytes |
| date | chrono's i32: year << 13, day of the year << 4, year flags |
| time | u32 seconds of the day, u32 nanoseconds |
| timestamp | date, then time |
| timestamptz | i64 microseconds since 1970 UTC |
| interval | i128 microseconds, a month being 30 days |
| struct, array | the fields or elements one after another |
| map | key, value, key, value, ... by ascending key |
| vector | u64 length, then each element as a real |

The integer rules are held by RisingWave's own golden values; the others follow its source and that of the crates below it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from struct import Struct, error
from typing import Any, Final, NamedTuple

from magnetar.hashing.errors import KeyEncodingError
from magnetar.hashing.key_types import MAX_CACHED_TYPES, KeyType

NULL_BYTES: Final = (0xFFFF_FFF0).to_bytes(4, "little")
MICROS_PER_DAY: Final = 86_400_000_000
DAYS_PER_MONTH: Final = 30
MAX_DECIMAL_DIGITS: Final = 38
"""A decimal key has at most so many digits, before and behind the point together, and so many behind it."""

NAN_BITS: Final = 0x7FF8_0000_0000_0000
MANTISSA_MASK: Final = 0x000F_FFFF_FFFF_FFFF
EXPONENT_MASK: Final = 0x7FF
SIGN_BIT: Final = 1 << 63

_I8, _I16, _I32, _I64 = Struct("<b"), Struct("<h"), Struct("<i"), Struct("<q")
_U32, _U64, _TWO_U32 = Struct("<I"), Struct("<Q"), Struct("<II")
_F32, _F64 = Struct("<f"), Struct("<d")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

Encoder = Callable[[Any], bytes]


class Interval(NamedTuple):
    """A calendar interval: months, days and microseconds are kept apart, as in SQL."""

    months: int
    days: int
    micros: int


@lru_cache(maxsize=MAX_CACHED_TYPES)
def encoder(key_type: KeyType) -> Encoder:
    """The encoding of one column, NULL (`None`) included. KeyEncodingError at the value that does not fit."""
    inner = _encoder(key_type)
    name = str(key_type)

    def encode(value: Any) -> bytes:
        if value is None:
            return NULL_BYTES
        try:
            return inner(value)
        except KeyEncodingError:
            raise
        except (TypeError, ValueError, OverflowError, AttributeError, ArithmeticError, error) as bad:
            raise KeyEncodingError(f"{value!r} is not a valid {name}: {bad}") from bad

    return encode


def encode_key(values: Sequence[Any], types: Sequence[KeyType]) -> bytes:
    """The bytes of one key of several columns. KeyEncodingError."""
    if len(values) != len(types):
        raise KeyEncodingError(f"{len(values)} values for {len(types)} types")
    return b"".join(encoder(key_type)(value) for value, key_type in zip(values, types, strict=True))


def _encoder(key_type: KeyType) -> Encoder:
    name = key_type.name
    if name in _SCALARS:
        return _SCALARS[name]
    children = [encoder(child) for child in key_type.children]
    if name == "array":
        return lambda values: b"".join(children[0](value) for value in _iterable(values))
    if name == "struct":
        return _struct_encoder(key_type, children)
    if name == "map":
        key, value = children
        return lambda entries: b"".join(key(k) + value(v) for k, v in sorted(_entries(entries)))
    raise KeyEncodingError(f"no vnode encoding for type {key_type}")


def _iterable(values: Any) -> Sequence[Any]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise TypeError("give a list or tuple")
    return values


def _entries(entries: Any) -> list[tuple[Any, Any]]:
    return list(entries.items()) if isinstance(entries, Mapping) else [(key, value) for key, value in entries]


def _struct_encoder(key_type: KeyType, children: list[Encoder]) -> Encoder:
    def encode(value: Any) -> bytes:
        fields = [value[name] for name in key_type.fields] if isinstance(value, Mapping) else list(_iterable(value))
        if len(fields) != len(children):
            raise ValueError(f"{len(fields)} fields for {len(children)}")
        return b"".join(child(field) for child, field in zip(children, fields, strict=True))

    return encode


def _integer(packer: Struct) -> Encoder:
    def encode(value: Any) -> bytes:
        if isinstance(value, bool):
            raise TypeError("a boolean is not an integer")
        return packer.pack(value)

    return encode


def _boolean(value: Any) -> bytes:
    if not isinstance(value, int) or value not in (0, 1):
        raise TypeError("give True or False")
    return b"\x01" if value else b"\x00"


def _int256(value: Any) -> bytes:
    return _U64.pack(2) + int(value).to_bytes(32, "little", signed=True)


def _real(value: Any) -> bytes:
    bits: int = _U32.unpack(_F32.pack(value))[0]
    exponent, fraction = (bits >> 23) & 0xFF, bits & 0x7F_FFFF
    if exponent == 0xFF and fraction:
        return _U64.pack(NAN_BITS)
    mantissa = fraction << 1 if exponent == 0 else fraction | 0x80_0000
    return _U64.pack(_float_bits(mantissa, exponent - 150, bits >> 31 == 0))


def _double(value: Any) -> bytes:
    bits: int = _U64.unpack(_F64.pack(value))[0]
    exponent, fraction = (bits >> 52) & 0x7FF, bits & MANTISSA_MASK
    if exponent == 0x7FF and fraction:
        return _U64.pack(NAN_BITS)
    mantissa = fraction << 1 if exponent == 0 else fraction | (1 << 52)
    return _U64.pack(_float_bits(mantissa, exponent - 1075, bits >> 63 == 0))


def _float_bits(mantissa: int, exponent: int, positive: bool) -> int:
    # The crate sets the sign bit for positive numbers; a quirk that every twin has to share.
    if mantissa == 0:
        return 0
    return (mantissa & MANTISSA_MASK) | ((exponent & EXPONENT_MASK) << 52) | (SIGN_BIT if positive else 0)


def decimal_bytes(negative: bool, coefficient: int, scale: int) -> bytes:
    """A finite decimal: `coefficient * 10**-scale`. KeyEncodingError beyond 38 digits."""
    while scale > 0 and coefficient % 10 == 0:
        coefficient //= 10
        scale -= 1
    if coefficient == 0:
        negative, scale = False, 0
    if coefficient >= 10**MAX_DECIMAL_DIGITS or scale > MAX_DECIMAL_DIGITS:
        raise KeyEncodingError(f"decimal key has more than {MAX_DECIMAL_DIGITS} digits")
    words = 3 if coefficient < 1 << 96 and scale <= 28 else 4
    flags = scale << 16 | (1 << 31 if negative else 0)
    return _I64.pack(1) + coefficient.to_bytes(4 * words, "little") + _U32.pack(flags)


def _decimal(value: Any) -> bytes:
    if isinstance(value, float):
        raise TypeError("a float has no exact decimal, give a Decimal")
    number = Decimal(value)
    if number.is_nan():
        return _I64.pack(3)
    if number.is_infinite():
        return _I64.pack(0 if number < 0 else 2)
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    if exponent > MAX_DECIMAL_DIGITS:
        raise KeyEncodingError(f"decimal key has more than {MAX_DECIMAL_DIGITS} digits")
    coefficient = int("".join(map(str, digits)) or "0") * 10 ** max(exponent, 0)
    return decimal_bytes(bool(sign), coefficient, max(-exponent, 0))


def _varchar(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError("give text")
    return value.encode() + b"\xff"


def _bytea(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError("give bytes")
    return _U64.pack(len(value)) + bytes(value)


def _jsonb(value: Any) -> bytes:
    parsed = json.loads(value) if isinstance(value, str) else value
    text = json.dumps(parsed, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode() + b"\xff"


def year_flags(year: int) -> int:
    """Chrono's four bits of a year: 8 unless it is a leap year, plus the weekday of the day before it (Tuesday 1 ... Monday 7)."""
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    # The calendar repeats after 400 years, and Python's begins in year 1.
    january_first = date(year % 400 + 400, 1, 1).isoweekday()
    return (0 if leap else 8) | ((january_first + 4) % 7 + 1)


def _date(value: Any) -> bytes:
    if isinstance(value, datetime) or not isinstance(value, date):
        raise TypeError("give a datetime.date")
    ordinal = value.timetuple().tm_yday
    return _I32.pack(value.year << 13 | ordinal << 4 | year_flags(value.year))


def _time(value: Any) -> bytes:
    if not isinstance(value, time) or value.tzinfo is not None:
        raise TypeError("give a datetime.time without a zone")
    seconds = value.hour * 3600 + value.minute * 60 + value.second
    return _TWO_U32.pack(seconds, value.microsecond * 1000)


def _timestamp(value: Any) -> bytes:
    if not isinstance(value, datetime) or value.tzinfo is not None:
        raise TypeError("give a datetime without a zone, or use timestamptz")
    return _date(value.date()) + _time(value.time())


def _timestamptz(value: Any) -> bytes:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise TypeError("give a datetime with a zone, or use timestamp")
    return _I64.pack((value - _EPOCH) // _MICROSECOND)


def _interval(value: Any) -> bytes:
    if isinstance(value, timedelta):
        micros = value // _MICROSECOND
    else:
        months, days, rest = Interval(*value)
        micros = (months * DAYS_PER_MONTH + days) * MICROS_PER_DAY + rest
    return micros.to_bytes(16, "little", signed=True)


def _vector(value: Any) -> bytes:
    elements = _iterable(value)
    return _U64.pack(len(elements)) + b"".join(map(_real, elements))


_SCALARS: Final[dict[str, Encoder]] = {
    "boolean": _boolean,
    "tinyint": _integer(_I8),
    "smallint": _integer(_I16),
    "integer": _integer(_I32),
    "bigint": _integer(_I64),
    "serial": _integer(_I64),
    "int256": _int256,
    "real": _real,
    "double": _double,
    "decimal": _decimal,
    "varchar": _varchar,
    "bytea": _bytea,
    "jsonb": _jsonb,
    "date": _date,
    "time": _time,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
    "interval": _interval,
    "vector": _vector,
}
