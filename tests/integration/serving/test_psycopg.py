"""psycopg 3 over TCP: values of every type in text and binary, parameters, cursors, transactions, COPY, cancel, errors."""

from __future__ import annotations

import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg import errors, sql
from psycopg.rows import dict_row

from tests.support.served_views import DELAYS, KINDS, ROWS, ViewServer
from tests.support.state_tables import StateTableHarness
from tests.support.waiting import wait_until

Connection = psycopg.Connection[Any]


def test_every_type_comes_as_it_is_stored_in_text_and_binary(connection: Connection) -> None:
    for binary in (False, True):
        with connection.cursor(binary=binary, row_factory=dict_row) as cursor:
            found = cursor.execute("SELECT * FROM kinds ORDER BY id").fetchall()
        assert [list(row) for row in found] == [KINDS.schema.names] * 3
        for row, expected in zip(found, ROWS, strict=True):
            got = {name: bytes(value) if isinstance(value, memoryview) else value for name, value in row.items()}
            assert got == expected


def test_parameters_of_every_type_in_text_and_binary(connection: Connection) -> None:
    row = ROWS[0]
    for style in ("%t", "%b"):
        for name in ("id", "flag", "small", "whole", "real", "price", "label", "raw", "day", "at", "local_at"):
            query = sql.SQL("SELECT id FROM kinds WHERE {} = " + style).format(sql.Identifier(name))
            assert connection.execute(query, [row[name]]).fetchall() == [(1,)], (style, name)
    assert connection.execute("SELECT id FROM kinds WHERE id = ANY(%s) ORDER BY id", [[3, 1]]).fetchall() == [
        (1,),
        (3,),
    ]
    assert connection.execute("SELECT %s::int + 1, %s::text, %s::date", [4, "x", date(2024, 1, 2)]).fetchone() == (
        5, "x", date(2024, 1, 2),
    )  # fmt: skip
    assert connection.execute("SELECT id FROM kinds WHERE id = %s", [None]).fetchall() == []
    assert connection.execute("SELECT count(*) FROM kinds LIMIT %s", [1]).fetchone() == (3,)


def test_a_key_is_looked_up_however_it_is_asked_for(connection: Connection) -> None:
    for query, values in (
        ("SELECT v FROM delays WHERE k = %s AND n = %s", ("k7", 57)),
        ("SELECT v FROM delays AS d WHERE d.n = %s AND d.k = %s", (57, "k7")),
        ("SELECT v FROM public.delays WHERE k IN (%s, 'none') AND n = %s", ("k7", 57)),
        ("SELECT v FROM delays WHERE (k = 'k7') AND (n = 57 AND v > %s)", (0,)),
        ("SELECT a.v FROM delays a JOIN delays b ON a.k = b.k AND a.n = b.n WHERE a.k = %s AND a.n = %s", ("k7", 57)),
    ):
        for prepare in (False, True):
            assert connection.execute(query, values, prepare=prepare).fetchall() == [(57 / 4,)], query
    assert connection.execute("SELECT v FROM delays WHERE k IS NULL AND n = 1").fetchall() == [(1.0,)]
    assert connection.execute("SELECT v FROM delays WHERE k = 'k7' OR n = 1").fetchall() != []
    assert connection.execute(
        "SELECT count(*) FROM delays d LEFT JOIN kinds x ON d.n = x.id WHERE x.id = 1"
    ).fetchone() == (2,)


def test_a_client_cursor_sends_simple_queries(server: ViewServer) -> None:
    with psycopg.connect(server.dsn(), cursor_factory=psycopg.ClientCursor, autocommit=True) as connection:
        assert connection.execute("SELECT v FROM delays WHERE k = %s AND n = %s", ("k7", 57)).fetchone() == (57 / 4,)
        cursor = connection.execute("SELECT 1 AS a; SELECT 2 AS b, 'x;y'; ; -- nothing")
        assert cursor.fetchall() == [(1,)]
        assert cursor.nextset()
        assert cursor.fetchall() == [(2, "x;y")]


def test_a_transaction_goes_on_as_postgresqls_does(server: ViewServer) -> None:
    with psycopg.connect(server.dsn()) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
        with pytest.raises(errors.UndefinedTable, match='relation "nothing" does not exist'):
            connection.execute("SELECT * FROM nothing")
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
        with pytest.raises(errors.InFailedSqlTransaction):
            connection.execute("SELECT 1")
        connection.rollback()
        with connection.transaction(), pytest.raises(errors.UndefinedColumn), connection.transaction():
            connection.execute("SELECT nothing FROM delays")
        assert connection.execute("SELECT 2").fetchone() == (2,)


def test_repeatable_read_stays_at_its_epoch_and_other_transactions_follow(
    server: ViewServer, harness: StateTableHarness
) -> None:
    ask = "SELECT count(*) FROM delays"
    with psycopg.connect(server.dsn()) as fixed, psycopg.connect(server.dsn()) as following:
        fixed.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        before = fixed.execute(ask).fetchone()
        assert following.execute(ask).fetchone() == before == (len(DELAYS),)
        epoch = harness.manifest.epoch
        harness.epoch({("new", 1): 1.0, ("new", 2): 2.0, ("k7", 57): None})
        wait_until(lambda: following.execute(ask).fetchone() == (len(DELAYS) + 1,), 60)
        assert fixed.execute(ask).fetchone() == before
        fixed.commit()
        assert fixed.execute(ask).fetchone() == (len(DELAYS) + 1,)
        assert following.execute(f"{ask} AS OF EPOCH {epoch}").fetchone() == before
        assert following.execute(f"SELECT v FROM delays AS OF EPOCH {epoch} WHERE k = 'k7' AND n = 57").fetchall() == [
            (57 / 4,)
        ]
        harness.epoch({("new", 1): None, ("new", 2): None, ("k7", 57): 57 / 4})
        wait_until(lambda: following.execute(ask).fetchone() == before, 60)


def test_server_side_cursors_and_portals_with_limits(server: ViewServer) -> None:
    with psycopg.connect(server.dsn()) as connection:
        with connection.cursor("big") as cursor:
            cursor.itersize = 300
            cursor.execute("SELECT n FROM delays WHERE k LIKE %s AND n IS NOT NULL ORDER BY n", ["k%"])
            assert [n for (n,) in cursor] == list(range(2000))
        with connection.cursor("part") as cursor:
            cursor.execute("SELECT n FROM delays WHERE k <> '' ORDER BY n")
            assert cursor.fetchmany(2) == [(0,), (1,)]
            assert cursor.fetchone() == (2,)
            with pytest.raises(errors.ObjectNotInPrerequisiteState, match="scan forward"):
                cursor.scroll(-1)
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        with connection.cursor("held", withhold=True) as cursor:
            cursor.execute("SELECT 1")
            assert cursor.fetchall() == [(1,)]
        rows = connection.cursor().stream("SELECT n FROM delays ORDER BY n NULLS LAST LIMIT 1000")
        assert sum(1 for _ in rows) == 1000


def test_copy_to_stdout(connection: Connection) -> None:
    with connection.cursor().copy("COPY (SELECT id, label, raw FROM kinds ORDER BY id) TO STDOUT") as copy:
        text = b"".join(bytes(block) for block in copy).decode()
    assert text.splitlines()[:2] == ["1\tplain\t\\\\x00ff61", "2\t\\N\t\\N"]
    with connection.cursor().copy(
        "COPY (SELECT id, label FROM kinds ORDER BY id) TO STDOUT WITH (FORMAT csv, HEADER)"
    ) as copy:
        lines = b"".join(bytes(block) for block in copy).decode().split("\n")
    assert lines[:3] == ["id,label", "1,plain", "2,"]
    with connection.cursor().copy("COPY kinds TO STDOUT") as copy:
        assert sum(1 for _ in copy.rows()) == 3


def test_a_running_query_is_cancelled_and_the_connection_goes_on(connection: Connection) -> None:
    slow = "SELECT count(*) FROM range(100000000) a(x), range(10000) b(y) WHERE hash(x + y) = 1"
    timer = threading.Timer(0.5, connection.cancel_safe)
    timer.start()
    with pytest.raises(errors.QueryCanceled):
        connection.execute(slow)
    timer.join()
    connection.execute("SET statement_timeout = '300ms'")
    with pytest.raises(errors.QueryCanceled, match="statement timeout"):
        connection.execute(slow)
    connection.execute("RESET statement_timeout")
    assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(
    ("statement", "state"),
    [
        ("SELEC 1", "42601"),
        ("SELECT nothing FROM delays", "42703"),
        ("SELECT * FROM nothing", "42P01"),
        ("SELECT nothing(1)", "42883"),
        ("SELECT 'x'::int", "22P02"),
        ("SELECT 1 / 0", "22012"),
        ("LOCK TABLE delays", "0A000"),
        ("SELECT to_char(at, 'HH:MI') FROM kinds", "0A000"),
        ("SELECT to_char(at, 'Day') FROM kinds", "0A000"),
        ("SELECT to_char(at, label) FROM kinds", "0A000"),
        ("SELECT decode('ff', label) FROM kinds", "0A000"),
        ("SELECT label SIMILAR TO label FROM kinds", "0A000"),
        ("SELECT 9223372036854775807 + 1", "22003"),
        ("SELECT k, count(*) FROM delays", "42803"),
        ("INSERT INTO delays VALUES (1)", "42809"),
        ("UPDATE delays SET v = 1", "42809"),
        ("DELETE FROM delays", "42809"),
        ("CREATE TABLE x (a int)", "55000"),
        ("CREATE MATERIALIZED VIEW x AS SELECT 1", "55000"),
        ("DROP MATERIALIZED VIEW delays", "55000"),
        ("CREATE INDEX i ON delays (k)", "55000"),
        ("WITH x AS (DELETE FROM delays RETURNING *) SELECT * FROM x", "25006"),
        ("SELECT * INTO x FROM delays", "25006"),
        ("COPY delays FROM STDIN", "0A000"),
        ("SELECT * FROM delays AS OF EPOCH 999", "72000"),
        ("SET standard_conforming_strings = off", "22023"),
        ("SET client_encoding = 'LATIN1'", "22023"),
        ("SHOW nothing", "42704"),
        ("FETCH 1 FROM nothing", "34000"),
        ("SELECT * FROM flights.other.delays", "42P01"),
    ],
)
def test_an_error_has_its_sqlstate_and_the_connection_goes_on(
    connection: Connection, statement: str, state: str
) -> None:
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(statement)
    assert caught.value.sqlstate == state, str(caught.value)
    assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        'SELECT * FROM "/etc/passwd"',
        "SELECT * FROM glob('/*')",
        "SELECT content FROM read_blob('/etc/passwd')",
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM duckdb_secrets()",
        "SELECT * FROM query('SELECT 1')",
        "SELECT * FROM 'http://127.0.0.1:1/x.parquet'",
        "SELECT getenv('HOME')",
        "COPY (SELECT 1) TO '/tmp/magnetar-must-not-be.csv'",
        "ATTACH '/tmp/magnetar-must-not-be.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "PRAGMA database_list",
        "SET memory_limit = '1TB'; SELECT * FROM read_text('/etc/passwd')",
        "EXPORT DATABASE '/tmp/magnetar-must-not-be'",
        "CALL pragma_version()",
    ],
)
def test_the_engine_reaches_neither_files_nor_the_network(connection: Connection, statement: str) -> None:
    with pytest.raises(psycopg.Error):
        connection.execute(statement)
    assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_query_that_needs_too_much_memory_fails_alone(connection: Connection) -> None:
    with pytest.raises((errors.OutOfMemory, errors.QueryCanceled)):
        connection.execute("SELECT count(DISTINCT x || repeat('x', 200)) FROM range(60000000) a(x)")
    assert connection.execute("SELECT 1").fetchone() == (1,)


def test_what_means_something_else_in_duckdb_means_what_it_does_in_postgresql(connection: Connection) -> None:
    for expression, expected in (
        ("'abc' SIMILAR TO 'a%'", True),
        ("'a.c' SIMILAR TO 'a.c'", True),
        ("'abc' SIMILAR TO 'a.c'", False),
        ("'xbc' SIMILAR TO '(a|x)_c'", True),
        ("extract(second FROM timestamp '2024-01-01 00:00:01.5')", 1.5),
        ("-7 / 2", -3),
        ("-7 % 2", -1),
        ("round(2.5)", Decimal(3)),
        ("3.5::int", 4),
        ("to_char(timestamp '2024-03-03 14:05:06', 'YYYY-MM-DD HH24:MI:SS')", "2024-03-03 14:05:06"),
    ):
        assert connection.execute(f"SELECT {expression}").fetchone() == (expected,), expression
    assert connection.execute("SELECT every(id > 0) FROM kinds").fetchone() == (True,)


def test_what_a_session_says_of_itself(connection: Connection) -> None:
    assert connection.info.server_version == 150000
    assert connection.info.encoding == "utf-8"
    asked = "SELECT current_user, current_database(), current_schema(), pg_catalog.version(), current_setting('search_path')"
    user, database, schema, version, path = connection.execute(asked).fetchone() or ()
    assert (user, database, schema, path) == ("reader", "flights", "public", '"$user", public')
    assert version.startswith("PostgreSQL 15.0 (magnetar")
    connection.execute("SET application_name TO 'tests'")
    assert connection.info.parameter_status("application_name") == "tests"
    assert connection.execute("SHOW transaction isolation level").fetchone() == ("read committed",)
    assert connection.execute("SHOW MATERIALIZED VIEWS").fetchall() == [("delays",), ("kinds",)]
    assert ("v", "double precision", "no") in connection.execute("DESCRIBE delays").fetchall()
    plan = "\n".join(line for (line,) in connection.execute("EXPLAIN SELECT * FROM delays WHERE k = 'a' AND n = 1"))
    assert "by key" in plan
    row = (
        connection.execute("SELECT sum(n), 5 / 2, 1.10::numeric(10,2), now() FROM delays WHERE n < 3").fetchone() or ()
    )
    assert row[:3] == (Decimal(4), 2, Decimal("1.10"))
    assert row[3].astimezone(UTC) > datetime(2024, 1, 1, tzinfo=UTC)
