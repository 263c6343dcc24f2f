"""What psql, SQLAlchemy and Grafana ask the system catalogs, with the real psql and SQLAlchemy; Grafana's queries replayed."""

from __future__ import annotations

import shutil
from typing import Any

import psycopg
import pytest

from tests.support.served_views import KINDS, ViewServer

PSQL = pytest.mark.skipif(
    shutil.which("psql") is None, reason="psql is not installed: apt-get install postgresql-client"
)


@PSQL
def test_psql_describes_what_there_is(server: ViewServer) -> None:
    relations = server.psql("\\d")
    assert "public | delays | materialized view | magnetar" in relations
    assert "kinds" in server.psql("\\dm")
    view = server.psql("\\d delays")
    assert 'Materialized view "public.delays"' in view
    assert " v      | double precision " in view
    assert '"delays_key" UNIQUE' in view
    whole = server.psql("\\d+ delays")
    assert "SELECT k, n, avg(n) AS v FROM f GROUP BY k, n" in whole
    kinds = server.psql("\\d kinds")
    for words in ("numeric(12,2)", "timestamp with time zone", "bigint[]", "text[]", "bytea"):
        assert words in kinds
    assert "flights" in server.psql("\\l")


@PSQL
@pytest.mark.parametrize(
    "command",
    ["dt", "dv", "di", "ds", "dn", "dn+", "du", "df", "dT", "db", "dx", "dp", "des", "dew", "dRp", "dRs", "dy", "dC", "dO", "dc", "dd",
     "da", "do", "dA", "dl", "dL", "dE", "det", "deu", "dF", "dg", "dP", "drds", "dX", "dm+", "dt+", "d+", "l+", "db+",
     "d delays*", "dconfig", "dD", "z", "conninfo", "encoding"],
)  # fmt: skip
def test_psql_is_told_of_everything_else_that_there_is_none(server: ViewServer, command: str) -> None:
    server.psql(f"\\{command}")


@PSQL
def test_psql_prints_rows_errors_and_variables(server: ViewServer) -> None:
    assert server.psql("\\pset format unaligned", "SELECT id, label, price FROM kinds WHERE id < 3 ORDER BY id") == (
        "Output format is unaligned.\nid|label|price\n1|plain|1234.50\n2||\n(2 rows)\n"
    )
    assert "ERROR:  relation" in server.psql("SELECT * FROM nothing", code=1)
    refused = server.psql("DROP MATERIALIZED VIEW delays", code=1)
    assert "does not run on this machine" in refused
    assert "HINT:  magnetar pipeline run FILE" in refused
    assert "2002" in server.psql("\\set FETCH_COUNT 100", "SELECT count(*) FROM delays")


def test_sqlalchemy_reflects_and_queries(server: ViewServer) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: pip install sqlalchemy")
    url = f"postgresql+psycopg://reader@{server.host}:{server.port}/{server.database}"
    engine: Any = sqlalchemy.create_engine(url)
    try:
        inspector = sqlalchemy.inspect(engine)
        assert sorted(inspector.get_materialized_view_names()) == ["delays", "kinds"]
        assert inspector.get_schema_names() == ["information_schema", "public"]
        assert inspector.get_table_names() == []
        columns = {column["name"]: column["type"] for column in inspector.get_columns("kinds")}
        assert list(columns) == KINDS.schema.names
        assert isinstance(columns["price"], sqlalchemy.Numeric)
        assert (columns["price"].precision, columns["price"].scale) == (12, 2)
        assert isinstance(columns["at"], sqlalchemy.DateTime)
        assert columns["at"].timezone
        assert inspector.get_indexes("delays")[0]["column_names"] == ["k", "n"]
        assert inspector.get_unique_constraints("delays")[0]["column_names"] == ["k", "n"]
        assert inspector.get_pk_constraint("delays")["constrained_columns"] == []
        assert inspector.get_foreign_keys("delays") == []
        assert "avg(n)" in inspector.get_view_definition("delays")
        delays = sqlalchemy.Table("delays", sqlalchemy.MetaData(), autoload_with=engine)
        with engine.connect() as connection:
            one = sqlalchemy.select(delays).where(delays.c.k == "k7", delays.c.n == 57)
            assert connection.execute(one).all() == [("k7", 57, 57 / 4)]
            grouped = (
                sqlalchemy.select(delays.c.k, sqlalchemy.func.count(), sqlalchemy.func.max(delays.c.v))
                .where(delays.c.n.between(0, 99)).group_by(delays.c.k).order_by(delays.c.k).limit(2).offset(1)
            )  # fmt: skip
            assert connection.execute(grouped).all() == [("k1", 2, 51 / 4), ("k10", 2, 60 / 4)]
            with pytest.raises(sqlalchemy.exc.ProgrammingError), connection.begin_nested():
                connection.execute(sqlalchemy.text("SELECT nothing FROM delays"))
            assert connection.execute(sqlalchemy.text("SELECT 1")).scalar() == 1
            streamed = connection.execution_options(yield_per=100).execute(
                sqlalchemy.select(delays.c.n).where(delays.c.k != "")
            )
            assert sum(1 for _ in streamed) == 2000
    finally:
        engine.dispose()


SCHEMAS = """SELECT quote_ident(schema_name) AS "schema" FROM information_schema.schemata
    WHERE quote_ident(schema_name) NOT IN ('information_schema', 'pg_catalog') ORDER BY 1"""
TABLES = """select case when quote_ident(table_schema) IN (
        SELECT CASE WHEN trim(s[i]) = '"$user"' THEN user ELSE trim(s[i]) END
        FROM generate_series(array_lower(string_to_array(current_setting('search_path'), ','), 1),
            array_upper(string_to_array(current_setting('search_path'), ','), 1)) as i,
        string_to_array(current_setting('search_path'), ',') s)
    then quote_ident(table_name) else quote_ident(table_schema) || '.' || quote_ident(table_name) end AS "table"
    from information_schema.tables
    where quote_ident(table_schema) NOT IN ('information_schema', 'pg_catalog', '_timescaledb_cache') ORDER BY 1"""
COLUMNS = """select quote_ident(column_name) as "column", data_type as "type" from information_schema.columns
    where case when array_length(parse_ident('public.delays'), 1) = 2
        then quote_ident(table_schema) = (parse_ident('public.delays'))[1] and quote_ident(table_name) = (parse_ident('public.delays'))[2]
        else quote_ident(table_name) = 'delays' end"""


def test_grafana_lists_schemas_tables_and_columns(server: ViewServer) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        ask = connection.execute
        assert ask("SELECT current_setting('server_version_num')::int/100 as version").fetchone() == (1500,)
        assert ask("SELECT extversion FROM pg_extension WHERE extname = 'timescaledb'").fetchall() == []
        assert ask(SCHEMAS).fetchall() == [("public",)]
        assert ask(TABLES).fetchall() == [('"Top ks"',), ("delays",), ("kinds",), ("late",)]
        assert ask(COLUMNS).fetchall() == [("k", "text"), ("n", "bigint"), ("v", "double precision")]
        panel = """SELECT floor(extract(epoch from "at")/3600)*3600 AS "time", avg(price) AS "price" FROM kinds
            WHERE "at" BETWEEN '2024-02-29T00:00:00Z' AND '2024-03-01T00:00:00Z' GROUP BY 1 ORDER BY 1"""
        assert ask(panel).fetchall() == [(1709208000, 1234.5)]


def test_object_ids_are_the_same_on_every_connection_and_for_the_catalogs_functions(server: ViewServer) -> None:
    seen = set()
    for _ in range(2):
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            seen.add(connection.execute("SELECT oid FROM pg_class WHERE relname = 'delays'").fetchone())
            assert connection.execute(
                "SELECT c.oid = 'delays'::regclass, c.oid::regclass::text, to_regclass('nothing') FROM pg_class c WHERE relname = 'delays'"
            ).fetchone() == (True, "delays", None)
    assert len(seen) == 1
