"""Functions that PostgreSQL has and DuckDB has not, or has with another meaning, as macros of DuckDB; `postgres_functions` calls them."""

from __future__ import annotations

import re
from typing import Final

SCHEMA: Final = "_postgres"
"""Where the macros lie."""

_MACROS: Final = r"""
half_steps(s) = CASE WHEN abs(s * 2 - round(s * 2)) < 1e-15 THEN round(s * 2) / 2 ELSE s END
whole_steps(s) = CASE WHEN abs(s - round(s)) < 1e-13 THEN round(s) ELSE s END
sind(x) = _postgres.half_steps(sin(radians(x::DOUBLE % 360)))
cosd(x) = _postgres.half_steps(cos(radians(x::DOUBLE % 360)))
tand(x) = CASE WHEN abs(x::DOUBLE) % 180 = 90 THEN CASE WHEN (x::DOUBLE % 360) IN (90, -270) THEN 'inf'::DOUBLE ELSE '-inf'::DOUBLE END ELSE _postgres.whole_steps(tan(radians(x::DOUBLE % 360))) END
cotd(x) = CASE WHEN x::DOUBLE % 180 = 0 THEN CASE WHEN (x::DOUBLE % 360) = 0 THEN 'inf'::DOUBLE ELSE '-inf'::DOUBLE END ELSE _postgres.whole_steps(1 / tan(radians(x::DOUBLE % 360))) END
asind(x) = _postgres.whole_steps(degrees(asin(x::DOUBLE)))
acosd(x) = _postgres.whole_steps(degrees(acos(x::DOUBLE)))
atand(x) = _postgres.whole_steps(degrees(atan(x::DOUBLE)))
atan2d(y,x) = _postgres.whole_steps(degrees(atan2(y, x)))
byte_at(b,n) = ('0x' || substr(hex(b), 2 * n + 1, 2))::INTEGER
with_byte(b,n,v) = unhex(substr(hex(b), 1, 2 * n) || format('{:02X}', v) || substr(hex(b), 2 * n + 3))
get_byte(b,n) = CASE WHEN b IS NULL OR n IS NULL THEN NULL WHEN n < 0 OR n >= octet_length(b) THEN error(format('index {} out of valid range, 0..{}', n, octet_length(b) - 1)) ELSE _postgres.byte_at(b, n) END
set_byte(b,n,v) = CASE WHEN b IS NULL OR n IS NULL THEN NULL WHEN n < 0 OR n >= octet_length(b) THEN error(format('index {} out of valid range, 0..{}', n, octet_length(b) - 1)) ELSE _postgres.with_byte(b, n, v & 255) END
get_bit(b,n) = CASE WHEN b IS NULL OR n IS NULL THEN NULL WHEN n < 0 OR n >= octet_length(b) * 8 THEN error(format('index {} out of valid range, 0..{}', n, octet_length(b) * 8 - 1)) ELSE (_postgres.byte_at(b, n // 8) >> (n % 8)) & 1 END
set_bit(b,n,v) = CASE WHEN b IS NULL OR n IS NULL THEN NULL WHEN n < 0 OR n >= octet_length(b) * 8 THEN error(format('index {} out of valid range, 0..{}', n, octet_length(b) * 8 - 1)) WHEN v NOT IN (0, 1) THEN error('new bit must be 0 or 1') ELSE _postgres.with_byte(b, n // 8, (_postgres.byte_at(b, n // 8) & ~(1 << (n % 8))) | (v << (n % 8))) END
bit_count_of_bytes(b) = coalesce(list_sum(list_transform(range(octet_length(b)), lambda i: bit_count(_postgres.byte_at(b, i)))), 0)::BIGINT
bytea_of(t) = CASE WHEN starts_with(t, '\x') THEN unhex(replace(substr(t, 3), ' ', '')) ELSE encode(t) END
hex_of(b) = '\x' || lower(hex(b))
convert_from(b,e) = decode(b)
convert_to(t,e) = encode(t)
btrim(t,s) = trim(t, s), btrim(t) = trim(t)
regexp_count(t,p) = len(regexp_extract_all(t, p)), regexp_count(t,p,s) = len(regexp_extract_all(substr(t, s), p))
array_to_string(a,d) = array_to_string(list_filter(a, lambda x: x IS NOT NULL), d), array_to_string(a,d,n) = array_to_string(list_transform(a, lambda x: coalesce(x::VARCHAR, n)), d)
clock_timestamp() = current_timestamp
jsonb_typeof(j) = CASE json_type(j) WHEN 'OBJECT' THEN 'object' WHEN 'ARRAY' THEN 'array' WHEN 'VARCHAR' THEN 'string' WHEN 'BOOLEAN' THEN 'boolean' WHEN 'NULL' THEN 'null' WHEN NULL THEN NULL ELSE 'number' END
jsonb_array_length(j) = json_array_length(j)
float_text(t) = CASE t WHEN 'nan' THEN 'NaN' WHEN 'inf' THEN 'Infinity' WHEN '-inf' THEN '-Infinity' ELSE regexp_replace(t, '\.0$', '') END
decimal_text(k,t) = CASE WHEN k IN ('DECIMAL(28,10)', 'DECIMAL(38,10)', 'DECIMAL(38,20)', 'DECIMAL(29,10)') THEN rtrim(rtrim(t, '0'), '.') ELSE t END
type_called(t) = coalesce(map_extract_value(MAP {'INTEGER': 'integer', 'BIGINT': 'bigint', 'SMALLINT': 'smallint', 'TINYINT': 'smallint', 'DOUBLE': 'double precision', 'FLOAT': 'real', 'VARCHAR': 'character varying', 'BOOLEAN': 'boolean', 'TIMESTAMP': 'timestamp without time zone', 'TIMESTAMP WITH TIME ZONE': 'timestamp with time zone', 'TIME': 'time without time zone', 'BLOB': 'bytea', 'HUGEINT': 'numeric', '"NULL"': 'unknown', 'JSON': 'jsonb'}, t), CASE WHEN starts_with(t, 'DECIMAL') THEN 'numeric' WHEN starts_with(t, 'STRUCT') OR starts_with(t, 'TUPLE') THEN 'record' ELSE lower(t) END)
pg_typeof(x) = _postgres.type_called(regexp_replace(typeof(x), '(\[\])+$', '')) || CASE WHEN typeof(x) LIKE '%[]' THEN '[]' ELSE '' END
array_text(a) = '{' || array_to_string(list_transform(a, lambda x: CASE WHEN x IS NULL THEN 'NULL' WHEN x::VARCHAR = '' OR lower(x::VARCHAR) = 'null' OR regexp_matches(x::VARCHAR, '[{},"\\\s]') THEN '"' || replace(replace(x::VARCHAR, '\', '\\'), '"', '\"') || '"' ELSE x::VARCHAR END), ',') || '}'
text_of(x) = CASE typeof(x) WHEN 'BOOLEAN' THEN left(x::VARCHAR, 1) WHEN 'DOUBLE' THEN _postgres.float_text(x::VARCHAR) WHEN 'FLOAT' THEN _postgres.float_text(x::VARCHAR) WHEN 'BLOB' THEN '\x' || lower(hex(encode(x::VARCHAR))) ELSE _postgres.decimal_text(typeof(x), x::VARCHAR) END
cast_text(x) = CASE typeof(x) WHEN 'DOUBLE' THEN _postgres.float_text(x::VARCHAR) WHEN 'FLOAT' THEN _postgres.float_text(x::VARCHAR) ELSE _postgres.decimal_text(typeof(x), x::VARCHAR) END
octet_length(x) = CASE WHEN typeof(x) = 'BLOB' THEN octet_length(x::BLOB) ELSE strlen(x::VARCHAR) END
reversed_bytes(b) = unhex(array_to_string(list_reverse(list_transform(range(octet_length(b)), lambda i: substr(hex(b), 2 * i + 1, 2))), ''))
coth(x) = cosh(x) / sinh(x)
array_ndims(a) = CASE WHEN len(a) > 0 THEN (length(typeof(a)) - length(replace(typeof(a), '[]', ''))) // 2 END
array_dims(a) = CASE WHEN len(a) > 0 THEN '[1:' || len(a) || ']' END
any_true(l) = CASE WHEN l IS NULL THEN NULL WHEN coalesce(list_contains(l, true), false) THEN true WHEN len(list_filter(l, lambda e: e IS NULL)) > 0 THEN NULL ELSE false END
all_true(l) = CASE WHEN l IS NULL THEN NULL WHEN coalesce(list_contains(l, false), false) THEN false WHEN len(list_filter(l, lambda e: e IS NULL)) > 0 THEN NULL ELSE true END
months_of(i) = datepart('year', i) * 12 + datepart('month', i)
micros_of(i) = datepart('hour', i) * 3600000000 + datepart('minute', i) * 60000000 + datepart('microsecond', i)
interval_parts(m,d,u) = to_months(trunc(m)::INTEGER) + to_days((trunc(d) + trunc(round((m - trunc(m)) * 30, 6)))::INTEGER) + to_microseconds(round(u + round((d - trunc(d) + round((m - trunc(m)) * 30, 6) - trunc(round((m - trunc(m)) * 30, 6))) * 86400, 6) * 1000000)::BIGINT)
interval_times(i,f) = _postgres.interval_parts(_postgres.months_of(i) * f::DOUBLE, datepart('day', i) * f::DOUBLE, _postgres.micros_of(i) * f::DOUBLE)
interval_over(i,f) = CASE WHEN f::DOUBLE = 0 THEN error('division by zero')::INTERVAL ELSE _postgres.interval_times(i, 1 / f::DOUBLE) END
micros_of_time(t) = datepart('hour', t) * 3600000000 + datepart('minute', t) * 60000000 + datepart('microsecond', t)
time_difference(a,b) = to_microseconds(_postgres.micros_of_time(a) - _postgres.micros_of_time(b))
interval_of_time(t) = to_microseconds(_postgres.micros_of_time(t))
time_of_interval(i) = TIME '00:00:00' + to_microseconds(((_postgres.micros_of(i) % 86400000000) + 86400000000) % 86400000000)
booleq(a,b) = a = b
boolne(a,b) = a <> b
array_max(a) = list_max(a)
array_min(a) = list_min(a)
array_sum(a) = list_sum(a)
array_overlaps(a,b) = list_has_any(a, b)
"""  # noqa: E501


def _read() -> dict[str, str]:
    """Behind CREATE MACRO and the name, by name."""
    found = {}
    for line in _MACROS.strip().splitlines():
        name = line.partition("(")[0]
        overloads = re.split(rf", (?={name}\()", line)
        bodies = [re.sub(rf"^{name}(\([^)]*\)) = ", r"\1 AS ", each) for each in overloads]
        found[name] = ", ".join(bodies)
    return found


MACROS: Final = _read()

INNER: Final = frozenset(
    [
        "half_steps",
        "whole_steps",
        "byte_at",
        "with_byte",
        "bytea_of",
        "hex_of",
        "bit_count_of_bytes",
        "type_called",
        "array_text",
        "text_of",
        "cast_text",
        "float_text",
        "decimal_text",
        "reversed_bytes",
        "any_true",
        "all_true",
        "months_of",
        "micros_of",
        "interval_parts",
        "interval_times",
        "interval_over",
        "micros_of_time",
        "time_difference",
        "interval_of_time",
        "time_of_interval",
    ]
)
"""Macros for our own use, which PostgreSQL has no functions for."""


def macro_statements() -> list[str]:
    """What makes them, in their order."""
    return [f"CREATE SCHEMA {SCHEMA}", *(f"CREATE MACRO {SCHEMA}.{name}{text}" for name, text in MACROS.items())]
