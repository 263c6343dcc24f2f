"""Vnodes in Spark SQL: the expression that gives, inside the JVM, the numbers of `vnode`.

Text only; nothing here imports Spark. Types are those of `key_types`; a Spark column's type is told by its `simpleString()`:

| Spark type | key type | how |
|---|---|---|
| boolean, tinyint, smallint, int, bigint | the same | hexadecimal digits swapped, then `unhex` |
| float, double | real, double | bits through `java_method` (Spark SQL has no function for them), the rest in arithmetic |
| decimal(p,s) | decimal | coefficient from the digits, words by exact decimal remainders |
| string, binary | varchar, bytea | as they are |
| date, timestamp_ntz, timestamp, time | date, timestamp, timestamptz, time | date functions; microseconds for instants |
| interval day to second, interval year to month | interval | microseconds, a month being 30 days |
| array, struct, map | the same | `aggregate` over the elements; a map's entries are sorted by key |

Spark has no type for int256, and no canonical JSON text for jsonb; these raise KeyEncodingError, as does vector. Instants and wall
clocks do not depend on the session's time zone. Works in ANSI mode, Spark 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count as counter
from typing import Final

from magnetar.hashing.errors import KeyEncodingError
from magnetar.hashing.key_encoding import (
    DAYS_PER_MONTH,
    EXPONENT_MASK,
    MANTISSA_MASK,
    MICROS_PER_DAY,
    NAN_BITS,
    NULL_BYTES,
)
from magnetar.hashing.key_types import KeyType
from magnetar.hashing.vnode import DEFAULT_VNODES, ROW_ID_SHIFT_BITS, check_vnode_count, row_id_vnode_bits

_NULL: Final = f"X'{NULL_BYTES.hex().upper()}'"
_WORD: Final = 1 << 32
_PLACES: Final = "ghijklmnopqrstuv"
"""Letters for the places of hexadecimal digits; none is a digit itself."""
_NANOS: Final = 1_000_000_000

MAX_REPEATED_LENGTH: Final = 64
"""A value with a longer text is named once in an expression, which then takes 1.2 us a row and not 0.3: nested expressions would
grow exponentially otherwise, and Spark stops compiling methods beyond 64 KiB."""

Expression = Callable[[str], str]


def vnode_expression(columns: Mapping[str, str] | Sequence[tuple[str, str]], count: int = DEFAULT_VNODES) -> str:
    """The vnode of a row as a Spark SQL expression (int).

    `columns`: expressions (a column's name is one; quote odd ones with backticks) with their Spark types as `simpleString()` gives
    them, in the order of the key. A type of `serial` marks a RisingWave row id. KeyEncodingError, VnodeCountError.
    """
    check_vnode_count(count)
    pairs = list(columns.items()) if isinstance(columns, Mapping) else list(columns)
    if not pairs:
        raise KeyEncodingError("a key has at least one column; a table without a key is one vnode, 0")
    hashed = f"cast(crc32({key_expression(pairs)}) % {count} AS int)"
    if len(pairs) == 1 and pairs[0][1].strip().lower() == "serial":
        bits = row_id_vnode_bits(count)
        taken = f"shiftright({pairs[0][0]}, {ROW_ID_SHIFT_BITS - bits}) & {(1 << bits) - 1}L"
        return f"CASE WHEN {pairs[0][0]} IS NULL THEN {hashed} ELSE cast(({taken}) % {count} AS int) END"
    return hashed


def key_expression(columns: Sequence[tuple[str, str]]) -> str:
    """The key bytes of a row as a Spark SQL expression (binary): what `key_encoding.encode_key` gives."""
    names = counter()
    parts = [_nullable(expression, spark_type, names) for expression, spark_type in columns]
    return parts[0] if len(parts) == 1 else f"concat({', '.join(parts)})"


def _nullable(expression: str, spark_type: str, names: counter[int]) -> str:
    return _case_null(expression, _encode(expression, KeyType.from_spark(spark_type), spark_type, names))


def _case_null(expression: str, encoded: str) -> str:
    return f"CASE WHEN {expression} IS NULL THEN {_NULL} ELSE {encoded} END"


def _encode(value: str, key_type: KeyType, spark_type: str, names: counter[int]) -> str:
    name = key_type.name
    if name in _SCALARS:
        return _SCALARS[name](value)
    if name == "interval":
        return _interval(value, spark_type)
    if name == "struct":
        fields = [
            _case_null(f"{value}.`{field}`", _encode(f"{value}.`{field}`", child, str(child), names))
            for field, child in zip(key_type.fields, key_type.children, strict=True)
        ]
        return f"concat({', '.join(fields)})" if len(fields) > 1 else fields[0]
    if name == "array":
        item = f"e{next(names)}"
        return _fold(value, item, _case_null(item, _encode(item, key_type.children[0], "", names)), names)
    if name == "map":
        item = f"e{next(names)}"
        key, held = key_type.children
        entry = (
            f"concat({_encode(f'{item}.key', key, '', names)}, "
            f"{_case_null(f'{item}.value', _encode(f'{item}.value', held, '', names))})"
        )
        return _fold(f"array_sort(map_entries({value}))", item, entry, names)
    raise KeyEncodingError(f"Spark SQL cannot encode {key_type} keys: compute their vnodes in Python or Arrow")


def _fold(array: str, item: str, encoded: str, names: counter[int]) -> str:
    total = f"a{next(names)}"
    return f"aggregate({array}, X'', ({total}, {item}) -> concat({total}, {encoded}))"


def _little_endian(value: str, width: int) -> str:
    """Bytes of a whole number, least significant first; hexadecimal text is big-endian, so something has to be swapped."""
    wide = f"cast({value} AS bigint)"
    if width == 1:
        return f"unhex(lpad(hex({wide} & 255L), 2, '0'))"
    if len(value) <= MAX_REPEATED_LENGTH:
        swapped = " | ".join(
            f"shiftleft(shiftrightunsigned({wide}, {8 * byte}) & 255L, {8 * (width - 1 - byte)})"
            for byte in range(width)
        )
        return f"unhex(lpad(hex({swapped}), {2 * width}, '0'))"
    # `translate` permutes the digits by mapping the letters of a constant pattern to them.
    places = _PLACES[: 2 * width]
    pattern = "".join(places[place : place + 2] for place in range(2 * width - 2, -1, -2))
    cut = wide if width == 8 else f"{wide} & {(1 << 8 * width) - 1}L"
    return f"unhex(translate('{pattern}', '{places}', lpad(hex({cut}), {2 * width}, '0')))"


def _bind(value: str, name: str, body: str) -> str:
    """`body` with `name` standing for `value`, which is evaluated once."""
    return f"element_at(transform(array({value}), {name} -> {body}), 1)"


def _integer(width: int) -> Expression:
    return lambda value: _little_endian(value, width)


def _boolean(value: str) -> str:
    return f"IF({value}, X'01', X'00')"


def _varchar(value: str) -> str:
    return f"concat(cast({value} AS binary), X'FF')"


def _bytea(value: str) -> str:
    return f"concat({_little_endian(f'octet_length({value})', 8)}, {value})"


def _float_bits(value: str, kind: str, method: str, fraction_bits: int) -> str:
    """The u64 of `key_encoding`: canonical NaN and zero, exponent of the whole mantissa, sign bit set for positive numbers."""
    bits = f"cast(java_method({method}, cast({value} AS {kind})) AS bigint)"
    exponent_mask = 0x7FF if kind == "double" else 0xFF
    bias = (exponent_mask >> 1) + fraction_bits
    exponent = f"(shiftright(b, {fraction_bits}) & {exponent_mask}L)"
    fraction = f"(b & {(1 << fraction_bits) - 1}L)"
    # A double's implied bit lies outside of the mask of 52 bits, a float's inside.
    implied = 0 if kind == "double" else 1 << fraction_bits
    mantissa = f"IF({exponent} = 0L, shiftleft({fraction}, 1) & {MANTISSA_MASK}L, {fraction} | {implied}L)"
    sign = "IF(b < 0L, 0L, shiftleft(1L, 63))"
    joined = f"({mantissa}) | shiftleft(({exponent} - {bias}L) & {EXPONENT_MASK}L, 52) | {sign}"
    number = f"CASE WHEN isnan({value}) THEN {NAN_BITS}L WHEN {value} = 0 THEN 0L ELSE {joined} END"
    return _bind(bits, "b", _little_endian(f"({number})", 8))


def _double(value: str) -> str:
    return _float_bits(value, "double", "'java.lang.Double', 'doubleToRawLongBits'", 52)


def _real(value: str) -> str:
    return _float_bits(value, "float", "'java.lang.Float', 'floatToRawIntBits'", 23)


def _date(value: str) -> str:
    january_first = f"weekday(make_date(year({value}), 1, 1))"
    leap = f"(dayofyear(make_date(year({value}), 12, 31)) = 366)"
    # weekday() counts from Monday 0, chrono's flags from the isoweekday: (weekday + 1 + 4) % 7 + 1.
    flags = f"(IF({leap}, 0, 8) | (({january_first} + 5) % 7 + 1))"
    return _little_endian(f"((shiftleft(year({value}), 13)) | shiftleft(dayofyear({value}), 4) | {flags})", 4)


def _time(value: str) -> str:
    seconds = f"(hour({value}) * 3600 + minute({value}) * 60 + second({value}))"
    nanos = f"cast((extract(SECOND FROM {value}) % 1) * {_NANOS} AS bigint)"
    return f"concat({_little_endian(seconds, 4)}, {_little_endian(nanos, 4)})"


def _timestamp(value: str) -> str:
    return f"concat({_date(f'cast({value} AS date)')}, {_time(value)})"


def _timestamptz(value: str) -> str:
    return _little_endian(f"unix_micros({value})", 8)


def _decimal(value: str) -> str:
    # Multiplying by 10**scale could overflow 38 digits; the text of a decimal has them all. Its sign is taken off the text, too:
    # Spark's abs() rounds to 34 digits.
    text = f"concat(ltrim('-', cast({value} AS string)), IF(instr(cast({value} AS string), '.') = 0, '.', ''))"
    whole, fraction = "substring_index(t, '.', 1)", "rtrim('0', substring_index(t, '.', -1))"
    parts = f"named_struct('c', cast(concat({whole}, {fraction}) AS decimal(38,0)), 's', length({fraction}))"
    bounds = [f"(p.c % {1 << 32 * word}BD)" for word in (1, 2, 3)]
    words = [
        f"cast({bounds[0]} AS bigint)",
        f"cast(({bounds[1]} - {bounds[0]}) / {_WORD}BD AS bigint)",
        f"cast(({bounds[2]} - {bounds[1]}) / {1 << 64}BD AS bigint)",
        f"cast((p.c - {bounds[2]}) / {1 << 96}BD AS bigint)",
    ]
    low, middle, high, top = (_little_endian(word, 4) for word in words)
    # Not by comparing with 0, for which Spark takes digits off a decimal(38,38).
    sign = f"startswith(cast({value} AS string), '-')"
    flags = _little_endian(f"(shiftleft(cast(p.s AS bigint), 16) | IF({sign}, {1 << 31}L, 0L))", 4)
    wide = f"IF(p.s > 28 OR p.c >= {1 << 96}BD, {top}, X'')"
    body = f"concat(X'0100000000000000', {low}, {middle}, {high}, {wide}, {flags})"
    return _bind(_bind(text, "t", parts), "p", body)


def _interval(value: str, spark_type: str) -> str:
    if "month" in spark_type or "year" in spark_type:
        # The longest interval, 2^31 months, is 600 times longer than 64 bits of microseconds.
        months = f"cast(extract(YEAR FROM {value}) * 12L + extract(MONTH FROM {value}) AS decimal(20,0))"
        return _bind(f"{months} * {DAYS_PER_MONTH * MICROS_PER_DAY}BD", "m", _little_endian_16("m"))
    # Not by adding to a timestamp: days would be calendar days of the session's time zone.
    days_and_hours = f"extract(DAY FROM {value}) * {MICROS_PER_DAY}L + extract(HOUR FROM {value}) * 3600000000L"
    rest = f"extract(MINUTE FROM {value}) * 60000000L + cast(extract(SECOND FROM {value}) * 1000000 AS bigint)"
    sign = "IF(m < 0, X'FFFFFFFFFFFFFFFF', X'0000000000000000')"
    return _bind(f"({days_and_hours} + {rest})", "m", f"concat({_little_endian('m', 8)}, {sign})")


def _little_endian_16(value: str) -> str:
    """Sixteen bytes of a decimal: split at 2^64 by exact arithmetic, the lower half as the signed number of the same bits."""
    low = f"pmod({value}, {1 << 64}BD)"
    high = f"cast(({value} - {low}) / {1 << 64}BD AS bigint)"
    signed = f"cast(IF({low} >= {1 << 63}BD, {low} - {1 << 64}BD, {low}) AS bigint)"
    return f"concat({_little_endian(signed, 8)}, {_little_endian(high, 8)})"


_SCALARS: Final[dict[str, Expression]] = {
    "boolean": _boolean,
    "tinyint": _integer(1),
    "smallint": _integer(2),
    "integer": _integer(4),
    "bigint": _integer(8),
    "serial": _integer(8),
    "real": _real,
    "double": _double,
    "decimal": _decimal,
    "varchar": _varchar,
    "bytea": _bytea,
    "date": _date,
    "time": _time,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
}
