"""Statements in the style of RisingWave's documentation, as values and back as text."""

from __future__ import annotations

import pytest

from magnetar.pipeline.sql.options import REDACTED, Options
from magnetar.pipeline.sql.parser import parse, parse_one
from magnetar.pipeline.sql.printer import print_statement
from magnetar.pipeline.sql.statements import (
    ROW_KEY,
    ColumnDefinition,
    CreateSink,
    CreateSource,
    CreateView,
    Describe,
    Drop,
    Explain,
    Flush,
    Format,
    Include,
    Query,
    Select,
    SetParallelism,
    Show,
    ShowCreate,
    Watermark,
)

SOURCE = """
CREATE SOURCE IF NOT EXISTS clicks (   -- one row for each click
  user_id BIGINT NOT NULL,
  "order" character varying,
  place STRUCT<lat double precision, tags varchar[]>,
  price numeric(10,2),
  at TIMESTAMP WITH TIME ZONE,
  day DATE AS CAST(at AS date),
  WATERMARK FOR at AS at - INTERVAL '5 seconds',
  PRIMARY KEY (user_id, "order")
)
INCLUDE KEY AS message_key
INCLUDE TIMESTAMP
INCLUDE PARTITION
INCLUDE HEADER 'trace-id' AS trace
WITH (
  connector = 'pulsar',
  topic = 'persistent://public/default/clicks',
  service.url = 'pulsar+ssl://host:6651',
  scan.startup.mode = 'earliest',
  auth.token = 'eyJhbGciOi',
  min-partitions = 8,
) FORMAT UPSERT ENCODE AVRO (schema.registry = 'http://user:hunter2@registry:8081');
"""


def test_a_source_with_every_clause() -> None:
    assert parse_one(SOURCE) == CreateSource(
        name="clicks",
        options=Options(
            {
                "connector": "pulsar",
                "topic": "persistent://public/default/clicks",
                "service.url": "pulsar+ssl://host:6651",
                "scan.startup.mode": "earliest",
                "auth.token": "eyJhbGciOi",
                "min-partitions": "8",
            }
        ),
        format=Format("UPSERT", "AVRO", Options({"schema.registry": "http://user:hunter2@registry:8081"})),
        columns=(
            ColumnDefinition("user_id", "BIGINT"),
            ColumnDefinition("order", "VARCHAR"),
            ColumnDefinition("place", "STRUCT<lat DOUBLE PRECISION, tags VARCHAR[]>"),
            ColumnDefinition("price", "DECIMAL(10, 2)"),
            ColumnDefinition("at", "TIMESTAMPTZ"),
            ColumnDefinition("day", "DATE", "CAST ( at AS date )"),
        ),
        primary_key=("user_id", "order"),
        watermark=Watermark("at", 5_000_000),
        includes=(
            Include("KEY", "message_key"),
            Include("TIMESTAMP", "__publishTime"),
            Include("PARTITION", "__partition"),
            Include("HEADER", "trace", "trace-id"),
        ),
        if_not_exists=True,
    )


TABLE = CreateSource(
    name="t",
    options=Options({"connector": "magnetar", "topic": "a"}),
    format=Format("PLAIN", "JSON"),
    columns=(ColumnDefinition("id", "INT"), ColumnDefinition("x", "VARCHAR")),
    primary_key=("id",),
    table=True,
)
WITH = "WITH (connector='pulsar', topic='out')"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (
            "CREATE TABLE t (id int primary key, x varchar) with (connector='magnetar', topic='a') format plain encode json",
            TABLE,
        ),
        (
            "CREATE TABLE t (id int, x varchar not null, primary key (id)) with (topic='a')",
            CreateSource(
                "t",
                Options({"topic": "a"}),
                Format("UPSERT", "JSON"),
                (ColumnDefinition("id", "INT", not_null=True), ColumnDefinition("x", "VARCHAR", not_null=True)),
                ("id",),
                table=True,
            ),
        ),
        (
            "CREATE TABLE IF NOT EXISTS t (x varchar)",
            CreateSource(
                "t",
                Options({}),
                Format("UPSERT", "JSON"),
                (ColumnDefinition("x", "VARCHAR"),),
                (ROW_KEY,),
                includes=(Include("KEY", ROW_KEY),),
                table=True,
                if_not_exists=True,
            ),
        ),
        (
            f"create source s {WITH} FORMAT PLAIN ENCODE BYTES",
            CreateSource("s", Options({"connector": "pulsar", "topic": "out"}), Format("PLAIN", "BYTES")),
        ),
        (
            f"create source s (*, watermark for ts as ts - interval '1' minute) {WITH} FORMAT PLAIN ENCODE JSON",
            CreateSource(
                "s",
                Options({"connector": "pulsar", "topic": "out"}),
                Format("PLAIN", "JSON"),
                watermark=Watermark("ts", 60_000_000),
            ),
        ),
        ("CREATE MATERIALIZED VIEW v AS SELECT count(*) FROM t", CreateView("v", Query("SELECT count(*) FROM t"))),
        (
            "CREATE MATERIALIZED VIEW IF NOT EXISTS v AS WITH a AS (SELECT 1) SELECT * FROM a\n EMIT ON WINDOW CLOSE ;",
            CreateView(
                "v", Query("WITH a AS (SELECT 1) SELECT * FROM a"), emit_on_window_close=True, if_not_exists=True
            ),
        ),
        (
            "CREATE MATERIALIZED VIEW v AS SELECT format('%s', a), b::timestamp with time zone FROM t -- the end",
            CreateView("v", Query("SELECT format('%s', a), b::timestamp with time zone FROM t")),
        ),
        (f"CREATE SINK s FROM v {WITH}", CreateSink("s", "v", Options({"connector": "pulsar", "topic": "out"}))),
        (
            f"CREATE SINK IF NOT EXISTS s AS SELECT a FROM v {WITH} FORMAT UPSERT ENCODE JSON (force_append_only = true)",
            CreateSink(
                "s",
                Query("SELECT a FROM v"),
                Options({"connector": "pulsar", "topic": "out"}),
                Format("UPSERT", "JSON", Options({"force_append_only": "true"})),
                if_not_exists=True,
            ),
        ),
        ("ALTER MATERIALIZED VIEW v SET PARALLELISM = 5", SetParallelism("v", 5)),
        ("alter materialized view v set parallelism to adaptive", SetParallelism("v", None)),
        ("SHOW SOURCES", Show("SOURCE")),
        ("show tables", Show("TABLE")),
        ("SHOW MATERIALIZED VIEWS LIKE 'a%''s'", Show("MATERIALIZED VIEW", "a%'s")),
        ("SHOW SINKS", Show("SINK")),
        ("SHOW CREATE MATERIALIZED VIEW v", ShowCreate("MATERIALIZED VIEW", "v")),
        ("DESCRIBE v", Describe("v")),
        ('DESC "select"', Describe("select")),
        ("DROP SOURCE IF EXISTS s CASCADE", Drop("SOURCE", "s", if_exists=True, cascade=True)),
        ("DROP MATERIALIZED VIEW v RESTRICT", Drop("MATERIALIZED VIEW", "v")),
        ("FLUSH", Flush()),
        ("SELECT 1 /* a /* nested */ comment */ + 1", Select(Query("SELECT 1 /* a /* nested */ comment */ + 1"))),
        ("EXPLAIN SELECT 1", Explain(Select(Query("SELECT 1")))),
        ("EXPLAIN CREATE MATERIALIZED VIEW v AS SELECT 1", Explain(CreateView("v", Query("SELECT 1")))),
    ],
)
def test_a_statement_becomes_its_value_and_its_text_reads_the_same(text: str, value: object) -> None:
    statement = parse_one(text)
    assert statement == value
    assert parse_one(print_statement(statement, with_credentials=True)) == value


def test_the_source_with_every_clause_survives_printing() -> None:
    statement = parse_one(SOURCE)
    assert parse_one(print_statement(statement, with_credentials=True)) == statement


def test_several_statements_know_their_places() -> None:
    first, second = parse("FLUSH;;\n\n  SELECT 'a;b' FROM \"c;d\";\n")
    assert first == Flush()
    assert isinstance(second, Select)
    assert (second.query.line, second.query.column) == (3, 3)


def test_no_text_form_shows_a_credential() -> None:
    statement = parse_one(SOURCE)
    for text in (repr(statement), str(statement), print_statement(statement), print_statement(Explain(statement))):  # type: ignore[arg-type]
        assert "eyJ" not in text
        assert "hunter2" not in text
        assert REDACTED in text


@pytest.mark.parametrize(
    "name",
    [
        "auth.token",
        "authParams",
        "aws.secret_key",
        "password",
        "tls.private-key",
        "access.key",
        "oauth.credentials.url",
    ],
)
def test_credential_names(name: str) -> None:
    assert "s3cr3t" not in repr(Options({name: "s3cr3t"}))


def test_credentials_within_urls() -> None:
    shown = repr(Options({"service.url": "pulsar://me:s3cr3t@h:6650/?a=1&token=s3cr3t"}))
    assert "s3cr3t" not in shown
    assert "h:6650/?a=1" in shown
