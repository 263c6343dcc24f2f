"""Tables that clients of PostgreSQL write while a pipeline runs: in views with the next epoch, and whole in their topics."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pulsar
import pytest

from magnetar.pipeline.views.pipeline import Pipeline
from magnetar.testing.server import ServerProcess
from tests.support.pipelines import latest, running, view_rows
from tests.support.served_views import serving
from tests.support.waiting import wait_until

TABLES = """
CREATE TABLE people (id INT PRIMARY KEY, name VARCHAR NOT NULL, score DOUBLE PRECISION, upper_name VARCHAR AS upper(name))
    WITH (service.url = '{url}', topic = '{topic}');
CREATE TABLE visits (person INT, at TIMESTAMP) WITH (service.url = '{url}');
CREATE TABLE kinds (a BIGINT, b VARCHAR, flag BOOLEAN, small SMALLINT, price NUMERIC(8, 2), any_price NUMERIC, raw BYTEA, day DATE,
    at TIMESTAMPTZ, other_at TIMESTAMP, doc JSONB, words VARCHAR[], PRIMARY KEY (a, b)) WITH (service.url = '{url}');
CREATE TABLE log (word VARCHAR, at TIMESTAMP, WATERMARK FOR at AS at) APPEND ONLY WITH (service.url = '{url}');
CREATE MATERIALIZED VIEW hourly AS SELECT window_start, count(*) AS c FROM TUMBLE(log, at, INTERVAL '1 hour')
    GROUP BY window_start EMIT ON WINDOW CLOSE;
COMMENT ON TABLE log IS 'only grows';
CREATE FUNCTION shout(x VARCHAR) RETURNS VARCHAR LANGUAGE sql AS $$ SELECT upper(x) || '!' $$;
CREATE MATERIALIZED VIEW loud AS SELECT id, shout(name) AS said FROM people WHERE shout(name) <> 'BOB!';
CREATE MATERIALIZED VIEW visited AS
    SELECT p.name, count(*) AS times FROM visits v JOIN people p ON v.person = p.id GROUP BY p.name;
"""

KINDS: list[tuple[Any, ...]] = [
    (-(2**63), "ünïcødé 🎉\n\"'\\", True, -32768, Decimal("-123456.78"), Decimal("0.0000000001"), b"\x00\xff", date(1, 1, 1),
     datetime(2024, 2, 29, 12, 0, 0, 123456, UTC), datetime(1969, 12, 31, 23, 59, 59, 1, UTC), '{"a": [1, null]}', ["a", None, "b,c"]),
    (2, "", None, None, None, None, None, None, None, None, None, None),
    (3, "x", False, 1, Decimal("0.00"), Decimal(12), b"", date(9999, 12, 31), datetime(1900, 1, 1, tzinfo=UTC),
     datetime(1, 1, 1, tzinfo=UTC), '"s"', []),
]  # fmt: skip
"""A row with a value of every type, one of NULLs, and one of extremes."""

PATIENT = {"statementTimeoutSeconds": "250"}


@pytest.fixture
def pipeline(
    spark: Any, server: ServerProcess, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Pipeline:
    monkeypatch.setenv("MAGNETAR_HOME", str(tmp_path))
    made = Pipeline(f"p{topic.rpartition('/')[2]}", spark=spark, units=2, trigger_s=0.05)
    made.prepare(low_latency=True)
    made.sql(TABLES.format(url=server.service_url, topic=topic))
    return made


@pytest.mark.timeout(600)
def test_tables_are_written_and_read(pipeline: Pipeline, tmp_path: Path, client: pulsar.Client, topic: str) -> None:
    with (
        running(pipeline),
        serving(tmp_path, pipeline.name, settings=PATIENT) as views,
        psycopg.connect(views.dsn(), autocommit=True) as connection,
    ):
        rows_are_counted_and_read_after_flush(connection)
        assert "_key_row" not in views.psql(r"\d visits")
        connection.execute("SET implicit_flush = true")
        connection.execute("INSERT INTO visits VALUES (4, '2024-01-02')")
        assert connection.execute("SELECT times FROM visited WHERE name = 'Dan'").fetchone() == (1,)
        a_table_that_only_grows_closes_windows(connection)
        people = sorted(connection.execute("SELECT * FROM people").fetchall())
    everything_can_be_built_again(pipeline, people, client, topic)


def a_table_that_only_grows_closes_windows(connection: psycopg.Connection[Any]) -> None:
    connection.execute("INSERT INTO log VALUES ('a', '2024-01-01 10:00'), ('a', '2024-01-01 10:59')")
    assert connection.execute("SELECT count(*) FROM log").fetchone() == (2,)
    assert connection.execute("SELECT * FROM hourly").fetchall() == []
    connection.execute("INSERT INTO log VALUES ('b', '2024-01-01 11:00')")
    wait_until(lambda: connection.execute("SELECT c FROM hourly").fetchall() == [(2,)], 120)
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        connection.execute("DELETE FROM log")
    assert connection.execute("SELECT obj_description('log'::regclass)").fetchone() == ("only grows",)
    connection.execute("COMMENT ON COLUMN log.word IS 'what was said'")
    assert connection.execute("SELECT col_description('log'::regclass, 1)").fetchone() == ("what was said",)


def rows_are_counted_and_read_after_flush(connection: psycopg.Connection[Any]) -> None:
    assert connection.execute("SELECT * FROM people").fetchall() == []  # before its first epoch
    assert connection.execute("UPDATE people SET name = 'x' WHERE id = %s", [1]).rowcount == 0
    done = connection.execute("INSERT INTO people VALUES (1, 'Ann', 1.5), (2, 'Bob', NULL), (%s, %s, 3)", [3, "Cid"])
    assert (done.statusmessage, done.rowcount) == ("INSERT 0 3", 3)
    assert connection.execute("INSERT INTO people (name, id) SELECT 'Dan', 4").rowcount == 1
    assert (
        connection.execute(
            "INSERT INTO visits VALUES (1, '2024-01-01 10:00'), (1, NULL), (2, NULL), (2, NULL)"
        ).rowcount
        == 4
    )
    with connection.cursor(binary=True) as cursor:
        for row in KINDS:
            cursor.execute(f"INSERT INTO kinds VALUES ({', '.join(['%s'] * len(row))})", row)
    connection.execute("FLUSH")
    assert connection.execute("SELECT * FROM kinds ORDER BY a").fetchall() == KINDS
    assert connection.execute("SELECT * FROM people ORDER BY id").fetchall() == [
        (1, "Ann", 1.5, "ANN"), (2, "Bob", None, "BOB"), (3, "Cid", 3.0, "CID"), (4, "Dan", None, "DAN"),
    ]  # fmt: skip
    assert dict(connection.execute("SELECT * FROM visited").fetchall()) == {"Ann": 2, "Bob": 2}
    assert dict(connection.execute("SELECT * FROM loud").fetchall()) == {1: "ANN!", 3: "CID!", 4: "DAN!"}
    assert connection.execute("SELECT shout(name) AS said FROM people WHERE id = 2").fetchall() == [("BOB!",)]
    assert connection.execute("SELECT * FROM visits WHERE at IS NOT NULL").fetchall() == [
        (1, datetime(2024, 1, 1, 10, tzinfo=UTC))
    ]

    done = connection.execute(
        "UPDATE people SET score = coalesce(score, 0) + 1, name = name || '!' WHERE id <= %s", [2]
    )
    assert done.statusmessage == "UPDATE 2"
    assert connection.execute("DELETE FROM people AS p WHERE p.id = 3").statusmessage == "DELETE 1"
    assert connection.execute("DELETE FROM visits WHERE person = 2").statusmessage == "DELETE 2"
    assert connection.execute("UPDATE visits SET at = '2030-01-01' WHERE at IS NULL AND person = 1").rowcount == 1
    assert (
        connection.execute("INSERT INTO people VALUES (4, 'Dan', 9)").rowcount == 1
    )  # in place of the row with its key
    assert connection.execute("DELETE FROM kinds WHERE a < 0 AND b LIKE 'ün%'").rowcount == 1
    assert (
        connection.execute("UPDATE kinds SET any_price = any_price * 2, words = ARRAY['z'] WHERE a = 3").rowcount == 1
    )
    connection.execute("FLUSH")
    assert connection.execute("SELECT id, name, score FROM people ORDER BY id").fetchall() == [
        (1, "Ann!", 2.5), (2, "Bob!", 1.0), (4, "Dan", 9.0),
    ]  # fmt: skip
    assert connection.execute("SELECT a, any_price, words, doc FROM kinds ORDER BY a").fetchall() == [
        (2, None, None, None), (3, Decimal(24), ["z"], '"s"'),
    ]  # fmt: skip
    assert connection.execute("SELECT * FROM visited").fetchall() == [("Ann!", 2)]
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO visits (person) VALUES (%s)", [(1,)] * 50)
        assert cursor.rowcount == 50
    connection.execute("INSERT INTO visits (person) SELECT 1 FROM generate_series(1, 2500)")
    connection.execute("FLUSH")
    assert connection.execute("SELECT times FROM visited").fetchone() == (2552,)
    assert connection.execute("DELETE FROM visits").rowcount == 2552
    connection.execute("FLUSH")
    assert connection.execute("SELECT count(*) FROM visited").fetchone() == (0,)


def everything_can_be_built_again(pipeline: Pipeline, people: list[Any], client: pulsar.Client, topic: str) -> None:
    """Its topic holds all changes, however long the pipeline has read them: another pipeline over it has the same rows."""
    assert "_key_row" not in str(latest(pipeline.files.root_url).views["columns"])
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        message = reader.read_next(10_000)
        found.append((message.partition_key(), message.data()))
    reader.close()
    assert found[0] == ("1", b'{"id":1,"name":"Ann","score":1.5}')
    assert ("3", b"") in found
    again = Pipeline("again", pipeline.files.root_url + "-again", spark=pipeline.spark, units=1)
    again.sql(pipeline.catalog.show_create("people") + ";")
    again.run(once=True)
    assert sorted(view_rows(again.files.root_url, "people")) == people
