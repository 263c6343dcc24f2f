"""What cannot be read is refused with line, column and the fix, whatever the text is."""

from __future__ import annotations

import pytest

from magnetar.pipeline.errors import SqlError
from magnetar.pipeline.sql.lexer import MAX_NESTING, MAX_STATEMENT_TOKENS, MAX_TEXT_CHARACTERS
from magnetar.pipeline.sql.parser import parse

WITH = "WITH (connector='pulsar', topic='a')"


@pytest.mark.parametrize(
    ("text", "line", "column", "fix"),
    [
        ("CREATE SOURCE s", 1, 16, "WITH (connector"),
        ("CREATE TABLE s", 1, 15, "name the columns"),
        ("CREATE TABLE s (a int) INCLUDE KEY", 1, 35, "others send"),
        ("CREATE TABLE s (a int) WITH (topics = 'x')", 1, 43, "no option topics"),
        ("CREATE TABLE s (b int, a int PRIMARY KEY AS 1)", 1, 47, "is computed"),
        ("CREATE TABLE s (a int PRIMARY KEY) APPEND ONLY", 1, 47, "has no PRIMARY KEY"),
        ("COMMENT ON INDEX i IS 'x'", 1, 20, "what has columns"),
        ("COMMENT ON COLUMN c IS 'x'", 1, 19, "a dot and a column"),
        ("COMMENT ON TABLE t", 1, 19, "COMMENT ON TABLE t IS 'text'"),
        ("TRUNCATE t", 1, 1, "empty message"),
        ("COPY t FROM stdin", 1, 1, "ENCODE CSV"),
        ("ROLLBACK", 1, 1, "one transaction"),
        ("CREATE USER u", 1, 8, "permissions"),
        ("CREATE AGGREGATE f(INT)", 1, 8, "aggregates there are"),
        ("ALTER MATERIALIZED VIEW m RENAME n", 1, 34, "ALTER MATERIALIZED VIEW m RENAME TO new_name"),
        ("ALTER SOURCE a ADD COLUMN z INT", 1, 16, "CREATE SOURCE in the file"),
        ("CREATE SOURCE s\nWITH (topic='a') FORMAT PLAIN ENCODE JSON", 2, 18, "connector = 'pulsar'"),
        (
            "CREATE SOURCE s WITH (connector='kafka', topic='a') FORMAT PLAIN ENCODE JSON",
            1,
            53,
            "'pulsar' or 'magnetar'",
        ),
        ("CREATE SOURCE s WITH (connector='pulsar') FORMAT PLAIN ENCODE JSON", 1, 43, "give one of topic"),
        (f"CREATE SOURCE s {WITH}", 1, 53, "FORMAT PLAIN ENCODE JSON"),
        (f"CREATE SOURCE s {WITH} FORMAT CANAL ENCODE JSON", 1, 61, "PLAIN, UPSERT, DEBEZIUM"),
        (f"CREATE TABLE s (a int) {WITH} FORMAT DEBEZIUM ENCODE JSON", 1, 88, "PRIMARY KEY"),
        (f"CREATE TABLE s (a int PRIMARY KEY) {WITH} FORMAT DEBEZIUM ENCODE AVRO", 1, 100, "ENCODE JSON only"),
        (f"CREATE TABLE s (PRIMARY KEY (a)) {WITH} FORMAT DEBEZIUM ENCODE JSON", 1, 98, "name the columns"),
        (f"CREATE SOURCE s {WITH} FORMAT PLAIN ENCODE THRIFT", 1, 74, "JSON, AVRO, PROTOBUF, CSV, BYTES"),
        (f"CREATE SOURCE s {WITH} FORMAT PLAIN ENCODE PROTOBUF (sep = 'x')", 1, 94, "takes message, schema.location"),
        (
            f"CREATE SOURCE s {WITH} FORMAT PLAIN ENCODE PROTOBUF (schema.location = 'file:///x')",
            1,
            114,
            "add message =",
        ),
        (f"CREATE SOURCE s {WITH} FORMAT PLAIN ENCODE CSV", 1, 77, "name the columns in the order of the fields"),
        (f"CREATE SOURCE s (a INT[]) {WITH} FORMAT PLAIN ENCODE CSV", 1, 87, "make a a JSONB"),
        (
            f"CREATE SOURCE s (a INT) {WITH} FORMAT PLAIN ENCODE CSV (sep = ';')",
            1,
            97,
            "takes delimiter, without_header",
        ),
        (f"CREATE SOURCE s (a INT) {WITH} FORMAT PLAIN ENCODE CSV (delimiter = ';;')", 1, 104, "one character"),
        (f"CREATE SOURCE s (a INT) {WITH} FORMAT PLAIN ENCODE CSV (without_header = 'false')", 1, 112, "has no header"),
        (f"CREATE SOURCE s (a int) {WITH} FORMAT UPSERT ENCODE JSON", 1, 87, "PRIMARY KEY"),
        (f"CREATE SOURCE s (a int, PRIMARY KEY (b)) {WITH} FORMAT PLAIN ENCODE JSON", 1, 103, "no column b"),
        (f"CREATE SOURCE s (a int, A text) {WITH} FORMAT PLAIN ENCODE JSON", 1, 25, "defined twice"),
        (f"CREATE SOURCE s (a blob9) {WITH} FORMAT PLAIN ENCODE JSON", 1, 20, "no Spark type"),
        ("CREATE SOURCE s (a int,\n  b int c) WITH", 2, 5, "not a column type"),
        ("CREATE SOURCE s (a int AS 1 b)", 1, 27, "without a name"),
        ("CREATE SOURCE s (a int,\n  b int AS 1 PRIMARY c)", 2, 22, "this SQL cannot be read"),
        ("CREATE SOURCE s WITH (connector=pulsar)", 1, 33, "single quotes"),
        ("CREATE SOURCE s WITH (a='1', A='2')", 1, 30, "given twice"),
        ("CREATE SOURCE select WITH (a='1')", 1, 15, '"select"'),
        ("CREATE SOURCE public.s WITH (a='1')", 1, 21, "no schema"),
        (f"CREATE SOURCE s (t timestamp, WATERMARK FOR t AS t - INTERVAL '1 month') {WITH}", 1, 63, "fixed length"),
        ("CREATE MATERIALIZED VIEW v SELECT 1", 1, 28, "AS SELECT"),
        ("CREATE MATERIALIZED VIEW v AS INSERT", 1, 31, "expected SELECT"),
        ("CREATE MATERIALIZED VIEW v AS SELECT 1 EMIT CHANGES", 1, 40, "EMIT ON WINDOW CLOSE"),
        ("CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT 1", 1, 8, "leave out OR REPLACE"),
        ("CREATE INDEX i ON v(lower(a))", 1, 21, "materialized view"),
        ("CREATE INDEX i ON v", 1, 20, "CREATE INDEX i ON v (column)"),
        ("CREATE INDEX i ON v(a NULLS)", 1, 28, "NULLS FIRST or NULLS LAST"),
        ("ALTER INDEX i SET (a = 'b')", 1, 7, "an index has no options"),
        ("CREATE SINK s INTO t FROM v", 1, 15, "topic"),
        ("CREATE SINK s FROM v", 1, 21, "WITH (connector"),
        ("ALTER MATERIALIZED VIEW v SET PARALLELISM = 0", 1, 45, "1 to 32768"),
        ("ALTER SINK v SET PARALLELISM = 1", 1, 14, "change its CREATE SINK"),
        ("ALTER SOURCE v SET ()", 1, 20, "nothing is set"),
        ("ALTER MATERIALIZED VIEW v SET (late = 'x')", 1, 31, "no option late"),
        ("SHOW EVERYTHING", 1, 6, "SOURCES"),
        ("DROP v", 1, 6, "MATERIALIZED VIEW"),
        ("INSERT INTO t VALUES (1)", 1, 1, "without a connector"),
        ("FLUSH SELECT 1", 1, 7, "';' missing"),
        ("EXPLAIN EXPLAIN SELECT 1", 1, 9, "once"),
        ("EXPLAIN SHOW SINKS", 1, 9, "SELECT or a CREATE"),
        ("?", 1, 1, "CREATE"),
        ("SELECT 'a\nb", 1, 8, "close it with '"),
        ('SELECT "a', 1, 8, 'close it with "'),
        ("SELECT $x$ a $y$", 1, 8, "close it with $x$"),
        ("FLUSH; /* /* */", 1, 8, "close it with */"),
        ("SELECT (1", 1, 8, "add ')'"),
        ("SELECT (1]", 1, 10, "closes nothing"),
    ],
)
def test_an_error_names_the_place_and_the_fix(text: str, line: int, column: int, fix: str) -> None:
    with pytest.raises(SqlError) as caught:
        parse(text)
    assert fix in str(caught.value)
    assert (caught.value.line, caught.value.column) == (line, column)


@pytest.mark.parametrize(
    "text",
    [
        "CREATE SOURCE s WITH (password='s3cr3t' 's3cr3t')",
        "CREATE SOURCE 's3cr3t'",
        "'s3cr3t'",
        "FLUSH 's3cr3t'",
        "CREATE SOURCE s (a 's3cr3t') WITH (a='b')",
        "CREATE SOURCE s WITH (connector='s3cr3t')",
    ],
)
def test_an_error_never_quotes_a_string(text: str) -> None:
    with pytest.raises(SqlError) as caught:
        parse(text)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "(" * MAX_TEXT_CHARACTERS,
        "SELECT " + "(" * (MAX_NESTING + 1) + "1" + ")" * (MAX_NESTING + 1),
        "SELECT " + "CASE WHEN " * 10_000,
        "SELECT " + "NOT " * 10_000 + "a",
        "SELECT " + "- " * 10_000 + "1",
        "'" * (MAX_TEXT_CHARACTERS - 1),
        "a " * (MAX_TEXT_CHARACTERS // 2),
        "/*" * (MAX_TEXT_CHARACTERS // 2),
        "EXPLAIN " * 9_000,
        "FLUSH;" * 1_001,
        "SELECT 1" + "+1" * MAX_STATEMENT_TOKENS,
        "x" * (MAX_TEXT_CHARACTERS + 1),
        "e'" + "\\" * (MAX_TEXT_CHARACTERS - 3),
        "$" * 1001,
        "\x00",
    ],
)
@pytest.mark.timeout(20)
def test_hostile_text_is_refused(text: str) -> None:
    with pytest.raises(SqlError):
        parse(text)


@pytest.mark.timeout(20)
def test_a_megabyte_of_comment_or_string_is_read() -> None:
    assert parse("--" + "x" * 1_000_000) == ()
    assert len(parse("SELECT '" + "''" * 500_000 + "'")) == 1
