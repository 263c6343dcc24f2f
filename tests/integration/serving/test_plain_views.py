"""Views that keep no rows (CREATE VIEW): found by psql and the catalogs, and read as their queries."""

from __future__ import annotations

import shutil
from typing import Any

import psycopg
import pytest

from tests.support.served_views import DELAYS, ViewServer

TOTALS: dict[str, list[float]] = {}
for (_k, _n), _v in DELAYS.items():
    if _v > 100:
        TOTALS.setdefault(_k, []).append(_v)
LATE = sorted((k, len(values), sum(values)) for k, values in TOTALS.items())


def test_a_view_is_read_as_its_query(connection: psycopg.Connection[Any]) -> None:
    assert connection.execute("SELECT * FROM late ORDER BY k").fetchall() == LATE
    assert connection.execute('SELECT l.count FROM public."late" l WHERE l.k = %s', ("k7",)).fetchone() == (
        len(TOTALS["k7"]),
    )
    assert connection.execute("SELECT public.late.total FROM public.late WHERE k = 'k7'").fetchone() == (
        sum(TOTALS["k7"]),
    )
    assert connection.execute("SELECT a, b FROM LATE AS t(a, b) ORDER BY a LIMIT 1").fetchone() == LATE[0][:2]
    joined = "SELECT count(*) FROM late JOIN delays d ON d.k = late.k AND d.v > 100"
    assert connection.execute(joined).fetchone() == (sum(count for _, count, _ in LATE),)


def test_a_view_reads_views_and_no_name_of_with_around_it(connection: psycopg.Connection[Any]) -> None:
    assert connection.execute('SELECT count(*) FROM "Top ks"').fetchone() == (len(LATE),)
    around = "WITH delays AS (SELECT 1 AS x), w AS (SELECT 2 AS y) SELECT count(*) FROM late, delays, w"
    assert connection.execute(around).fetchone() == (len(LATE),)
    hidden = "WITH late AS (SELECT 1 AS x) SELECT * FROM late"
    assert connection.execute(hidden).fetchall() == [(1,)]


def test_a_view_over_a_source_says_why_it_has_no_rows(connection: psycopg.Connection[Any]) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable, match="view raw_rows cannot be read") as refused:
        connection.execute("SELECT * FROM raw_rows")
    assert "CREATE MATERIALIZED VIEW raw_rows" in str(refused.value.diag.message_hint)


def test_the_catalogs_tell_of_views(connection: psycopg.Connection[Any]) -> None:
    kinds = "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1"
    assert connection.execute(kinds).fetchall() == [
        ("Top ks", "VIEW"),
        ("delays", "MATERIALIZED VIEW"),
        ("kinds", "MATERIALIZED VIEW"),
        ("late", "VIEW"),
    ]
    columns = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'late' ORDER BY ordinal_position"
    assert connection.execute(columns).fetchall() == [
        ("k", "text"),
        ("count", "bigint"),
        ("total", "double precision"),
    ]
    for relation in ("pg_views WHERE viewname", "information_schema.views WHERE table_name"):
        assert connection.execute(f"SELECT count(*) FROM {relation} = 'late'").fetchone() == (1,)
    assert connection.execute(
        "SELECT 'late'::regclass::oid > 0, relkind FROM pg_class WHERE relname = 'late'"
    ).fetchone() == (
        True,
        "v",
    )
    assert connection.execute("SHOW VIEWS").fetchall() == [("late",), ("Top ks",), ("raw_rows",)]
    assert connection.execute("DESCRIBE late").fetchall()[0] == ("k", "text", "no")
    assert "FROM delays" in str(connection.execute("SHOW CREATE VIEW late").fetchall())
    assert any("Read delays" in line for (line,) in connection.execute("EXPLAIN SELECT * FROM late").fetchall())


@pytest.mark.skipif(shutil.which("psql") is None, reason="psql is not installed: apt-get install postgresql-client")
def test_psql_describes_views(server: ViewServer) -> None:
    assert "public | late" in server.psql("\\dv")
    assert "late" not in server.psql("\\dm")
    shown = server.psql("\\d late")
    assert 'View "public.late"' in shown
    assert " total  | double precision " in shown
    assert "GROUP BY k" in server.psql("\\d+ late")
    assert "GROUP BY k" in server.psql("\\sv late")
    assert 'View "public.Top ks"' in server.psql('\\d "Top ks"')


def test_sqlalchemy_lists_and_reflects_views(server: ViewServer) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: pip install sqlalchemy")
    engine: Any = sqlalchemy.create_engine(f"postgresql+psycopg://reader@{server.host}:{server.port}/{server.database}")
    inspector: Any = sqlalchemy.inspect(engine)
    assert set(inspector.get_view_names()) >= {"late", "Top ks"}
    assert [column["name"] for column in inspector.get_columns("late")] == ["k", "count", "total"]
    engine.dispose()
